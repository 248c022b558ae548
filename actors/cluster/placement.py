"""Placement of actors on the nodes of a cluster: the workers' resources, and the server's node and memory."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors import runtime
from actors.cluster.attach import joined_address
from fedraa.config.processes import count_workers
from fedraa.config.sections import ClusterOptions, DeviceOptions
from fedraa.devices.worker_groups import WorkerGroup, group_of_clients, parse_group
from fedraa.engine.memory_check import GIGA
from fedraa.errors import InputError
from fedraa.messages import Index

# Fractions of GPUs are summed with rounding errors up to this size.
ROUNDING = 1e-6
# Ray's option for each built-in resource.
NAMED = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


def make_worker_groups(options: ClusterOptions, clients: int, device: str) -> tuple[WorkerGroup, ...]:
    """Return the worker groups of the option `resources`. If the option is not set, return one group.

    Args:
        options: The options of the cluster.
        clients: The number of clients.
        device: The option `device` of the experiment.
    """
    if options.resources is not None:
        return tuple(parse_group(text) for text in options.resources)
    count = count_workers(options, clients)
    threads = options.threads_per_worker
    if options.workers is None:
        room = max(1, int(_total_resource("CPU")) // threads)
        if joined_address() is not None:
            count = clients
        count = min(count, room)
    return (WorkerGroup(count, {"CPU": threads, "GPU": gpu_share(device, count)}),)


def group_of(groups: Sequence[WorkerGroup], devices: DeviceOptions, clients: int) -> Index:
    """Return the index of the worker group that trains each client, int64 [clients].

    Args:
        groups: The worker groups.
        devices: The options of the devices.
        clients: The number of clients.
    """
    if len(groups) == 1:
        return np.zeros(clients, np.int64)
    return group_of_clients(groups, devices.compute, clients)


def gpu_share(device: str, count: int) -> float:
    """Return the fraction of a GPU that each of `count` workers gets; 0 without GPUs."""
    gpus = int(_total_resource("GPU"))
    if device == "cpu" or not gpus:
        return 0.0
    return 1 / -(-count // gpus)


def refuse_missing_resources(asked: Iterable[WorkerGroup]) -> None:
    """Raise InputError if the cluster has too few resources for all these workers together.

    Call this function only for a private cluster, which no node can join.
    """
    needs: Counter[str] = Counter()
    for group in asked:
        needs.update({name: group.workers * amount for name, amount in group.needs.items()})
    for name, amount in needs.items():
        total = _total_resource(name)
        if amount > total + ROUNDING:
            problem = f"the workers need {amount:g} {name}, but Ray on this machine has {total:g}"
            hint = "give other --resources, or the --address of a cluster that has them"
            raise InputError("resources", problem, hint=hint)


def find_missing_resource(asked: Iterable[WorkerGroup]) -> str | None:
    """Return a warning if no node has the amount of a resource that one of these workers needs."""
    nodes = [node["Resources"] for node in living_nodes()]
    for group in asked:
        for name, amount in group.needs.items():
            if all(node.get(name, 0.0) + ROUNDING < amount for node in nodes):
                problem = f"no node of the cluster has {amount:g} {name} for a worker, so the worker waits for one"
                return f"resources: {problem}; give other --resources, or add such a node"
    return None


def worker_options(group: WorkerGroup, placement: str) -> dict[str, Any]:
    """Return the options with which Ray creates a worker.

    Args:
        group: The group of the worker.
        placement: With `pack` (Ray's default), Ray fills half of a node before it uses the next node. With `spread`,
            it uses all nodes.
    """
    options: dict[str, Any] = {"num_cpus": 0, "resources": {}}
    for name, amount in group.needs.items():
        if name in NAMED:
            options[NAMED[name]] = amount
        else:
            options["resources"][name] = amount
    return options | {"scheduling_strategy": "SPREAD" if placement == "spread" else "DEFAULT"}


def server_options(node: dict[str, Any], memory: float) -> dict[str, Any]:
    """Return the options with which Ray creates the server on a node.

    Args:
        node: The description of the node.
        memory: The bytes of memory that the server reserves.

    Raises:
        InputError: The node has too little memory.
    """
    has = node["Resources"].get("memory", 0.0)
    if memory > has:
        raise InputError(
            "server_node",
            f"the node {node['NodeName']} has {has / GIGA:.3g} of the {memory / GIGA:.3g} GB that the server needs",
            hint="choose another node with --server-node",
        )
    here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    # The run and the pings have threads of their own. Three other calls can be executed at the same time: a request for
    # events, a repetition of this request, and a command that inspects or stops the run.
    return {"num_cpus": 0, "max_concurrency": 3, "memory": memory, "scheduling_strategy": here}


def nodes_for_shards(count: int) -> list[str]:
    """Return the ids of `count` nodes for server shards. The nodes are different if there are enough.

    Nodes that declare no CPUs to Ray are used only if all nodes declare none.
    """
    nodes = living_nodes()
    able = [node for node in nodes if node["Resources"].get("CPU")] or nodes
    return list(islice(cycle(sorted(node["NodeID"] for node in able)), count))


def living_nodes() -> list[dict[str, Any]]:
    """Return the descriptions of all living nodes."""
    return [node for node in runtime.nodes() if node["Alive"]]


def find_node(wanted: str, option: str = "server_node") -> dict[str, Any]:
    """Return the first living node with this id, address, name or resource. `option` names the option in an error."""
    nodes = living_nodes()
    for node in nodes:
        if wanted in (node["NodeID"], node["NodeManagerAddress"], node["NodeName"], *node["Resources"]):
            return dict(node)
    known = ", ".join(sorted(f"{node['NodeName']} ({node['NodeID'][:8]})" for node in nodes))
    raise InputError(option, got=wanted, expected=f"the id, address, name or a resource of a node: {known}")


def _total_resource(resource: str) -> float:
    return float(runtime.resources().get(resource, 0))
