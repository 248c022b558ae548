"""Runs an assembly on Ray: starts or joins a cluster, spawns the server actor, watches it."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.blocks import put_blocks
from actors.server import ParameterServer
from fedraa.assembly import Assembly
from fedraa.experiment import Experiment
from fedraa.loop import Progress, RunFailed

WATCH_SECONDS = 0.2


def run_on_ray(assembly: Assembly, directory: Path, watch: Callable[[Progress], None]) -> None:
    """Run to the end. The server actor lives on this node, where the run directory is."""
    experiment = assembly.experiment
    with cluster(experiment):
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        server: Any = (
            ray.remote(ParameterServer)
            .options(num_cpus=0, max_concurrency=2, scheduling_strategy=here)
            .remote(
                assembly.without_training_rows(),
                directory.resolve(),
                put_blocks(assembly.data),
                worker_count(experiment),
                gpus=0.0,
            )
        )
        end = server.execute.remote()
        try:
            while not ray.wait([end], timeout=WATCH_SECONDS)[0]:
                if (progress := ray.get(server.progress.remote())) is not None:
                    watch(progress)
            ray.get(end)
        except RayTaskError as error:
            if isinstance(error.cause, RunFailed | ValueError):
                raise error.cause from None
            raise
        finally:
            ray.kill(server)


def worker_count(experiment: Experiment) -> int:
    """The worker actors that an experiment asks for."""
    return experiment.workers or min(experiment.clients, os.cpu_count() or 1)


@contextmanager
def cluster(experiment: Experiment) -> Iterator[None]:
    """Ray for one or more runs: the one already joined, the one at `address`, or one of our own."""
    if ray.is_initialized():
        yield
        return
    cpus = (
        None
        if experiment.address
        else max(os.cpu_count() or 1, worker_count(experiment) * experiment.threads_per_worker)
    )
    ray.init(
        address=experiment.address,
        num_cpus=cpus,
        include_dashboard=False if experiment.address is None else None,
        configure_logging=True,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()
