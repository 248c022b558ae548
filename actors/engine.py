"""Runs an assembly on Ray: starts or joins a cluster, spawns the server actor, watches it."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.blocks import put_blocks
from actors.server import ParameterServer
from fedraa.assembly import Assembly
from fedraa.checkpoint import newest_first
from fedraa.experiment import Experiment
from fedraa.history import CHECKPOINTS
from fedraa.interrupt import interruptible, uninterrupted
from fedraa.loop import Progress, RunFailed
from fedraa.resources import workers

WATCH_SECONDS = 0.2
DEATHS = 3  # of the server, without a checkpoint in between, before the run is given up

logger = logging.getLogger(__name__)


def run_on_ray(assembly: Assembly, directory: Path, watch: Callable[[Progress], None], resume: bool) -> bool:
    """Run, or go on; whether to the end. The server actor lives on this node, where the run directory is.

    A server that dies is started again from its last checkpoint.
    """
    experiment, stop = assembly.experiment, Event()
    with interruptible(stop.set), cluster(experiment):
        blocks = put_blocks(assembly.data)
        hosted = ray.put(assembly.without_training_rows())
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(ParameterServer).options(num_cpus=0, max_concurrency=2, scheduling_strategy=here)
        deaths, last = 0, None
        while True:
            server: Any = actor.remote(
                hosted, directory.resolve(), blocks, workers(experiment), gpus=gpu_share(experiment)
            )
            try:
                return _follow(server, server.execute.remote(resume), watch, stop)
            except RayActorError:
                newest = next(iter(newest_first(directory / CHECKPOINTS)), None)
                deaths, last, resume = (deaths + 1 if newest == last else 1), newest, True
                if deaths == DEATHS:
                    wrong = f"the server died {DEATHS} times without a new checkpoint"
                    raise RunFailed(f"{wrong}; go on with: fedraa resume {directory}") from None
                logger.warning("the server died; it is started again from %s", newest or "the beginning")
            finally:
                ray.kill(server)


def _follow(server: Any, end: ray.ObjectRef[Any], watch: Callable[[Progress], None], stop: Event) -> bool:
    """Watches a server to the end of what it executes, and tells it to stop when asked to."""
    told = False
    while not ray.wait([end], timeout=WATCH_SECONDS)[0]:
        if stop.is_set() and not told:
            server.stop.remote()
            told = True
        if (progress := ray.get(server.progress.remote())) is not None:
            watch(progress)
    try:
        return bool(ray.get(end))
    except RayTaskError as error:
        if isinstance(error.cause, RunFailed | ValueError):
            raise error.cause from None
        raise


def gpu_share(experiment: Experiment) -> float:
    """The part of a GPU that each worker gets: as many workers share one as there are too many; 0 without GPUs."""
    gpus = int(ray.cluster_resources().get("GPU", 0))  # type: ignore[no-untyped-call]  # ray leaves it untyped
    if experiment.device == "cpu" or not gpus:
        return 0.0
    return 1 / -(-workers(experiment) // gpus)


@contextmanager
def cluster(experiment: Experiment) -> Iterator[None]:
    """Ray for one or more runs: the one already joined, the one at `address`, or one of our own.

    One of our own leaves nothing behind, neither processes nor files.
    """
    if ray.is_initialized():
        yield
        return
    with TemporaryDirectory(prefix="fedraa-", ignore_cleanup_errors=True) as directory:
        own: dict[str, Any] = {}
        if experiment.address is None:
            cpus = max(os.cpu_count() or 1, workers(experiment) * experiment.threads_per_worker)
            own = {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": directory}
        ray.init(address=experiment.address, logging_level=logging.ERROR, log_to_driver=False, **own)
        try:
            yield
        finally:
            with uninterrupted():
                ray.shutdown()
