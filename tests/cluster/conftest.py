"""Fixtures for tests on real clusters: one cluster of three nodes that the tests share."""

from collections.abc import Iterator

import pytest
from nodes import Nodes, nodes


# Tests that use this fixture are in the group "three nodes", because two heads at once need the same ports.
@pytest.fixture(scope="session")
def three() -> Iterator[Nodes]:
    """Yield a cluster of a head, a node with the resource `server`, and a node with the resource `phone`."""
    with nodes() as cluster:
        cluster.join("one", {"server": 1}, "--metrics-export-port", str(cluster.metrics))
        cluster.join("two", {"phone": 1})
        yield cluster
