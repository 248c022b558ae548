"""Fixtures for tests on real clusters: two workers, and a cluster of three nodes, that the tests share."""

from collections.abc import Iterator
from typing import Any

import pytest
from nodes import Nodes, nodes

from actors.pool.pulse import actor_class
from benchmarks.system.warm_workers import WarmWorker


@pytest.fixture(scope="session")
def warm_workers(cluster: None) -> tuple[Any, ...]:
    """Start two actors that serve one run after another."""
    actor = actor_class(WarmWorker).options(num_cpus=1)
    return tuple(actor.remote() for _ in range(2))


@pytest.fixture(scope="session")
def three() -> Iterator[Nodes]:
    """Yield a cluster of a head, a node with the resource `server`, and a node with the resource `phone`."""
    with nodes() as cluster:
        cluster.join("one", {"server": 1}, "--metrics-export-port", str(cluster.metrics))
        cluster.join("two", {"phone": 1})
        yield cluster
