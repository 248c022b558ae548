"""Fixtures for tests on real clusters: one cluster of three nodes that the tests share."""

from collections.abc import Iterator

import pytest
from nodes import Nodes, nodes


@pytest.fixture(scope="session")  # whoever uses it is in the group "three nodes": two heads at once want the same ports
def three() -> Iterator[Nodes]:
    """Yield a cluster of a head, a node with the resource `server`, and a node with the resource `phone`."""
    with nodes() as cluster:
        cluster.join("one", {"server": 1}, "--metrics-export-port", str(cluster.metrics))
        cluster.join("two", {"phone": 1})
        yield cluster
