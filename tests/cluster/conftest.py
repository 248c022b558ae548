"""The cluster of three nodes that tests of real clusters share."""

from collections.abc import Iterator

import pytest
from nodes import Nodes, nodes


@pytest.fixture(scope="session")  # whoever uses it is in the group "three nodes": two heads at once want the same ports
def three() -> Iterator[Nodes]:
    """A head, a node with the resource `server`, and one with the resource `phone`."""
    with nodes() as cluster:
        cluster.join("one", {"server": 1}, "--metrics-export-port", str(cluster.metrics))
        cluster.join("two", {"phone": 1})
        yield cluster
