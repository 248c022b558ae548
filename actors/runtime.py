"""The calls, the time and the locks of the Ray layer. A simulation replaces these names.

The executor, the liveness probes, the follower, the relay and the placement of actors call `runtime.wait(...)`, and
never Ray's functions, `time` or `threading` directly.
"""

from threading import Condition, Lock
from time import monotonic, sleep
from typing import Any

import ray
from ray import get, kill, put, wait

__all__ = ["Condition", "Lock", "get", "kill", "monotonic", "node_id", "nodes", "put", "resources", "sleep", "wait"]


def node_id() -> str:
    """Return the id of this process's node."""
    return str(ray.get_runtime_context().get_node_id())


def nodes() -> list[dict[str, Any]]:
    """Return the descriptions of all nodes, living and dead ones."""
    # Ray leaves this function untyped.
    descriptions: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return descriptions


def resources() -> dict[str, float]:
    """Return the amounts of all resources of the cluster."""
    # Ray leaves this function untyped.
    amounts: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return amounts
