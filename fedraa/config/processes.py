"""The number of a run's processes and cores, and the address of its cluster."""

import os

from fedraa.config.sections import ClusterOptions
from fedraa.devices.worker_groups import parse_group


def count_workers(options: ClusterOptions, clients: int) -> int:
    """Return the number of worker actors on this machine, for a run with this number of clients."""
    if options.resources is not None:
        return sum(parse_group(text).workers for text in options.resources)
    return options.workers or min(clients, os.cpu_count() or 1)


def count_cores(options: ClusterOptions, clients: int) -> int:
    """Return the number of cores of a new local cluster: those of this machine, or more if the workers need more."""
    return max(os.cpu_count() or 1, count_workers(options, clients) * options.threads_per_worker)


def cluster_address(options: ClusterOptions) -> str | None:
    """Return the address of an existing cluster, None for a new local one. Ray sets RAY_ADDRESS in a submitted job."""
    if options.address is not None or options.engine != "ray":
        return options.address
    return os.environ.get("RAY_ADDRESS")
