"""The number of workers and cores of a run on Ray, and the address of its cluster."""

import os
import socket
import sys

from fedraa.config.sections import ClusterOptions
from fedraa.devices.worker_groups import parse_group

# This variable has the address of the Ray cluster that a run without the option `address` joins.
ADDRESS_VARIABLE = "RAY_ADDRESS"
# A worker has at most one call in progress and one that waits.
CALLS_PER_WORKER = 2


def count_workers(options: ClusterOptions, clients: int) -> int:
    """Return the number of worker processes of a run.

    By default, a run on Ray has a worker for each core of this machine, but at most one per client. Any other run has
    one worker, which is the process of the run itself.
    """
    if options.resources is not None:
        return sum(parse_group(text).workers for text in options.resources)
    if options.workers is None and options.engine == "local":
        return 1
    return options.workers or min(clients, os.cpu_count() or 1)


def count_cores(options: ClusterOptions, clients: int) -> int:
    """Return the number of cores that a new local cluster declares.

    It is the number of this machine's cores, or more if the workers need more.
    """
    return max(os.cpu_count() or 1, count_workers(options, clients) * options.threads_per_worker)


def cluster_address(options: ClusterOptions) -> str | None:
    """Return the address of the run's Ray cluster; None for a new local cluster.

    If the option `address` is not set, the address is the environment variable RAY_ADDRESS. Ray sets this variable in a
    submitted job.
    """
    if options.address is not None or options.engine != "ray":
        return options.address
    return address_in_environment()


def has_other_machines() -> bool:
    """Return True if this process has joined a Ray cluster that has nodes on other machines.

    Ray takes seconds to import. A process that has joined a cluster has imported it already.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    names = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    return names != {socket.gethostname()}


def address_in_environment() -> str | None:
    """Return the variable RAY_ADDRESS; None if it is not set or empty."""
    return os.environ.get(ADDRESS_VARIABLE) or None
