"""Functions of Ray, of `time` and of `threading` that actors use. Tests replace them by a simulation.

The executor, the liveness probes, the follower, the relay and the placement call `runtime.wait(...)` and so on. They
never call Ray, `time` or `threading` directly.
"""

from threading import Condition, Lock
from time import monotonic, sleep
from typing import Any

import ray
from ray import get, kill, put, wait

__all__ = ["Condition", "Lock", "get", "kill", "monotonic", "node_id", "nodes", "put", "resources", "sleep", "wait"]


def node_id() -> str:
    """Return the id of the node on which this process runs."""
    return str(ray.get_runtime_context().get_node_id())


def nodes() -> list[dict[str, Any]]:
    """Return the descriptions of all living and dead nodes."""
    # Ray leaves this function untyped.
    descriptions: list[dict[str, Any]] = ray.nodes()
    return descriptions


def resources() -> dict[str, float]:
    """Return the total amount of each resource of the cluster, by name."""
    # Ray leaves this function untyped.
    amounts: dict[str, float] = ray.cluster_resources()
    return amounts
