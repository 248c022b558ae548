"""Shared by all tests: one thread per process, and one Ray cluster for the session where Ray is needed."""

import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # or other tests at work would starve Ray's
os.environ["FEDRAA_CACHE"] = ""  # tests trace, and leave nothing in the user's cache

import numpy as np
import pytest
import torch
from hypothesis import settings
from sample_runs import write_sample_runs

torch.set_num_threads(1)
# Only a power failure could lose what a killed process has written, and a run waits for the disk a dozen times.
os.fsync = lambda descriptor: None
# A shell starts what it puts in the background (`bash .ci/run &`) with Ctrl-C ignored, and so its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The same examples in every run, however busy the machine; `--hypothesis-profile default` looks for others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests with Ray in one process of pytest-xdist, because one cluster serves them and they mostly wait."""
    for item in items:
        if item.get_closest_marker("cluster") is not None:
            item.add_marker(pytest.mark.xdist_group("cluster"))


def pytest_runtest_setup() -> None:
    """A test that draws without a seed draws the same in every run, whatever ran before it."""
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> None:
    """Exclude imports and collected tests from the search for garbage after every run, which would take longer."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def sample_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one run that ended and two that were interrupted. Tests only read it."""
    folder = tmp_path_factory.mktemp("sample-runs")
    write_sample_runs(folder)
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A cluster of twelve slots, however many cores there are, joined by every run; mark its tests `cluster`."""
    import ray

    from actors.ray_versions import minimal_ray

    with minimal_ray():
        ray.init("local", num_cpus=12, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    yield
    ray.shutdown()
