"""Fixtures for tests of several studies."""

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with random pictures instead of CIFAR-10's subset."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    x, y = rng.random((1000, 3, 32, 32), np.float32), np.arange(1000) % 10
    np.savez(folder / "cifar10-subset.npz", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
    return folder
