"""The parameter server actor: hosts a run, its event loop and its workers."""

from pathlib import Path

import ray
import torch

from actors.blocks import Blocks
from actors.pool import RayPool
from fedraa.assembly import Assembly
from fedraa.loop import Progress
from fedraa.runner import Runner


class ParameterServer:
    """Runs one experiment to its end; `progress` and `stop` may be called meanwhile."""

    def __init__(self, assembly: Assembly, directory: Path, blocks: Blocks, workers: int, gpus: float) -> None:
        torch.set_num_threads(1)
        experiment = assembly.experiment
        self._pool = RayPool(
            recipe=ray.put(assembly.recipe),
            blocks=blocks,
            evaluation_data=ray.put(assembly.data),
            workers=workers,
            threads=experiment.threads_per_worker,
            device=experiment.device,
            gpus=gpus,
        )
        self._progress: Progress | None = None
        self._run = Runner(assembly, directory, self._pool, self._watch)

    def execute(self) -> None:
        try:
            self._run.execute()
        finally:
            self._pool.close()

    def progress(self) -> Progress | None:
        return self._progress

    def stop(self) -> None:
        self._run.stop()

    def _watch(self, progress: Progress) -> None:
        self._progress = progress
