"""Where actors run: the groups of workers and what each takes, the server's node and its memory."""

from collections import Counter
from collections.abc import Iterable
from itertools import cycle, islice
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedraa.config.experiment import Experiment
from fedraa.config.processes import cluster_address, workers
from fedraa.devices.worker_groups import WorkerGroup, group_of_clients, parse_group
from fedraa.engine.memory_check import GIGA
from fedraa.errors import InputError
from fedraa.messages import Index

ROUNDING = 1e-6  # shares of a GPU that add up to one
NAMED = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}  # Ray's own resources are options of their own


def groups(experiment: Experiment) -> tuple[WorkerGroup, ...]:
    """The workers that an experiment asks for; one group unless it has `resources`."""
    if experiment.resources is not None:
        return tuple(parse_group(text) for text in experiment.resources)
    count, threads = workers(experiment), experiment.threads_per_worker
    if cluster_address(experiment) is not None and experiment.workers is None:
        count = min(experiment.clients, max(1, int(_total("CPU")) // threads))
    return (WorkerGroup(count, {"CPU": threads, "GPU": gpu_share(experiment, count)}),)


def group_of(experiment: Experiment) -> Index:
    """The worker group that trains each client, int64 [clients]."""
    if experiment.resources is None:
        return np.zeros(experiment.clients, np.int64)
    return group_of_clients(groups(experiment), experiment.capabilities, experiment.clients)


def gpu_share(experiment: Experiment, count: int) -> float:
    """The part of a GPU that each worker gets: as many workers share one as there are too many; 0 without GPUs."""
    gpus = int(_total("GPU"))
    if experiment.device == "cpu" or not gpus:
        return 0.0
    return 1 / -(-count // gpus)


def fits(asked: Iterable[WorkerGroup]) -> bool:
    """Whether the cluster has what all these workers need together."""
    whole = ray.cluster_resources()  # type: ignore[no-untyped-call]  # ray leaves it untyped
    needs: Counter[str] = Counter()
    for group in asked:
        needs.update({name: group.workers * amount for name, amount in group.needs.items()})
    return all(amount <= whole.get(name, 0.0) + ROUNDING for name, amount in needs.items())


def worker_options(group: WorkerGroup, placement: str) -> dict[str, Any]:
    """Ray's options for a worker. `pack` is Ray's default: a node is filled to half before the next one."""
    options: dict[str, Any] = {"num_cpus": 0, "resources": {}}
    for name, amount in group.needs.items():
        if name in NAMED:
            options[NAMED[name]] = amount
        else:
            options["resources"][name] = amount
    return options | {"scheduling_strategy": "SPREAD" if placement == "spread" else "DEFAULT"}


def server_options(node: dict[str, Any], memory: float) -> dict[str, Any]:
    """Ray's options for the server: bound to its node, of which it reserves `memory` bytes.

    Three calls at a time: the run, the driver that listens, and whoever else looks at it.
    """
    has = node["Resources"].get("memory", 0.0)
    if memory > has:
        raise InputError(
            "server_node",
            f"the node {node['NodeName']} has {has / GIGA:.3g} of the {memory / GIGA:.3g} GB that the server needs",
            hint="choose another node with --server-node",
        )
    here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return {"num_cpus": 0, "max_concurrency": 3, "memory": memory, "scheduling_strategy": here}


def nodes_for_shards(count: int) -> list[str]:
    """The ids of `count` nodes, as different as there are: those that have cores first."""
    nodes = living_nodes()
    able = [node for node in nodes if node["Resources"].get("CPU")] or nodes
    return list(islice(cycle(sorted(node["NodeID"] for node in able)), count))


def living_nodes() -> list[dict[str, Any]]:
    """Return the descriptions of all living nodes."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # ray leaves it untyped


def find_node(wanted: str) -> dict[str, Any]:
    """Return the first living node with this id, address or name, or with a resource of this name."""
    nodes = living_nodes()
    for node in nodes:
        if wanted in (node["NodeID"], node["NodeManagerAddress"], node["NodeName"], *node["Resources"]):
            return dict(node)
    there = ", ".join(sorted(f"{node['NodeName']} ({node['NodeID'][:8]})" for node in nodes))
    raise InputError("server_node", got=wanted, expected=f"the id, address, name or a resource of a node: {there}")


def _total(resource: str) -> float:
    return float(ray.cluster_resources().get(resource, 0))  # type: ignore[no-untyped-call]  # ray leaves it untyped
