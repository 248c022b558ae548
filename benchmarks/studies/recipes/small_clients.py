"""A part of CIFAR-10 for 40 clients with 100 images each."""

from dataclasses import replace
from pathlib import Path

from fedraa.data.dataset import Dataset
from fedraa.data.load import load_dataset

IMAGES = 4000


def cifar10(data_dir: Path | None) -> Dataset:
    """Return the first `IMAGES` training images and all test images of the CIFAR-10 subset in `data_dir`."""
    assert data_dir is not None
    data = load_dataset(str(data_dir / "cifar10-subset.npz"))
    assert isinstance(data, Dataset)
    return replace(data, x_train=data.x_train[:IMAGES], y_train=data.y_train[:IMAGES])
