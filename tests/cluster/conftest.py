"""Two workers that tests on the cluster of the session share."""

from typing import Any

import pytest

from actors.pool.liveness import actor_class
from benchmarks.system.warm_workers import WarmWorker


@pytest.fixture(scope="session")
def warm_workers(cluster: None) -> tuple[Any, ...]:
    """Start two actors that serve one run after another."""
    actor = actor_class(WarmWorker).options(num_cpus=1)
    return tuple(actor.remote() for _ in range(2))
