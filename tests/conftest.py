"""Settings of all tests: one thread per process, and one Ray cluster for all tests that need Ray."""

import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without this, Ray lowers the priority of workers, and other tests would take their CPU time.
os.environ.setdefault("RAY_worker_niceness", "0")
# Tests trace models, and must not write into the user's cache.
os.environ["FEDRAA_CACHE"] = ""

import numpy as np
import pytest
import torch
from hypothesis import settings
from sample_runs import write_sample_runs

torch.set_num_threads(1)
# Tests skip fsync, because only a power failure would lose data, and each run would wait for the disk a dozen times.
os.fsync = lambda descriptor: None
# If a shell starts the tests in the background (`bash .ci/run &`), they and their children would ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Hypothesis uses the same examples in every run, also on a busy machine. `--hypothesis-profile default` tries others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests with Ray in one process of pytest-xdist, because one cluster serves them and they mostly wait.

    Tests that read /proc are skipped if it does not exist.
    """
    has_proc = Path("/proc/self/stat").exists()
    for item in items:
        if item.get_closest_marker("cluster") is not None:
            item.add_marker(pytest.mark.xdist_group("cluster"))
        if item.get_closest_marker("linux") is not None and not has_proc:
            item.add_marker(pytest.mark.skip(reason="it reads /proc, which this system does not have"))


def pytest_runtest_setup() -> None:
    """Seed the global generators, so that a test without a seed does not depend on the tests before it."""
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> None:
    """Exclude imports and collected tests from garbage collections, because they would make each collection slow."""
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
    """Yield a cluster of twelve CPUs for Ray, on any machine, which every run joins.

    Its tests have the mark `cluster`.
    """
    import ray

    from actors.ray_versions import minimal_ray

    with minimal_ray():
        ray.init("local", num_cpus=12, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def default_sigterm_handler() -> Iterator[None]:
    """Restore the default handler of SIGTERM, because Ray may have installed its handler in an earlier test."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)
