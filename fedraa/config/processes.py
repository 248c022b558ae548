"""Which processes an experiment asks for: its workers, and the cluster that they are on."""

import os

from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import parse_group


def workers(experiment: Experiment) -> int:
    """The worker actors that an experiment asks for on this machine."""
    if experiment.resources is not None:
        return sum(parse_group(text).workers for text in experiment.resources)
    return experiment.workers or min(experiment.clients, os.cpu_count() or 1)


def cores(experiment: Experiment) -> int:
    """How many a cluster of our own has to offer: those of this machine, or as many as the workers want."""
    return max(os.cpu_count() or 1, workers(experiment) * experiment.threads_per_worker)


def cluster_address(experiment: Experiment) -> str | None:
    """The cluster to attach to; None for one of our own. A job submitted to a cluster finds it in RAY_ADDRESS."""
    return experiment.address or (os.environ.get("RAY_ADDRESS") if experiment.engine == "ray" else None)
