"""The processes of an experiment: its workers, and their cluster."""

import os

from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import parse_group


def workers(experiment: Experiment) -> int:
    """Return the number of worker actors on this machine."""
    if experiment.resources is not None:
        return sum(parse_group(text).workers for text in experiment.resources)
    return experiment.workers or min(experiment.clients, os.cpu_count() or 1)


def cores(experiment: Experiment) -> int:
    """Return the number of cores of a new local cluster: those of this machine, or more if the workers need more."""
    return max(os.cpu_count() or 1, workers(experiment) * experiment.threads_per_worker)


def cluster_address(experiment: Experiment) -> str | None:
    """Return the address of an existing cluster, None for a new local one. A submitted job finds it in RAY_ADDRESS."""
    return experiment.address or (os.environ.get("RAY_ADDRESS") if experiment.engine == "ray" else None)
