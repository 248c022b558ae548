"""The parameter server actor: hosts a run, its event loop and its workers."""

from pathlib import Path
from threading import Event

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
        self._assembly, self._directory = assembly, directory
        self._blocks, self._workers, self._gpus = blocks, workers, gpus
        self._progress: Progress | None = None
        self._stop = Event()

    def execute(self, resume: bool) -> bool:
        """Begin the run, or go on with it; whether it came to its end. Leaves no worker behind."""
        assembly, experiment = self._assembly, self._assembly.experiment
        pool = RayPool(
            recipe=ray.put(assembly.recipe),
            blocks=self._blocks,
            evaluation_data=ray.put(assembly.data),
            workers=self._workers,
            threads=experiment.threads_per_worker,
            device=experiment.device,
            gpus=self._gpus,
        )
        try:
            return Runner(assembly, self._directory, pool, self._stop, self._watch).execute(resume=resume)
        finally:
            pool.close()

    def progress(self) -> Progress | None:
        return self._progress

    def stop(self) -> None:
        self._stop.set()

    def _watch(self, progress: Progress) -> None:
        self._progress = progress
