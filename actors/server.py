"""The parameter server actor: hosts a run, its event loop and its workers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import torch

from actors.blocks import Blocks
from actors.host import Hosts
from actors.metrics import Metrics, log_as_lines
from actors.mirror import Changes, Stamp, changes, write_all
from actors.pool import RayPool
from actors.shards import ShardedStore
from fedraa.assembly import Assembly
from fedraa.crews import Crew
from fedraa.loop import Progress
from fedraa.messages import Index
from fedraa.runner import Runner


@dataclass(frozen=True, eq=False)
class Setting:
    """What a server needs besides the assembly: the clients' data, its workers, and who started it.

    `driver` and `description` are for the run directory; `label` names the run; with `fingerprint`, that of the
    training data, nodes read their shards themselves.
    """

    blocks: Blocks
    crews: tuple[Crew, ...]
    crew_of: Index
    driver: str
    description: dict[str, object]
    label: str
    fingerprint: int | None


class ParameterServer:
    """Runs one experiment to its end; the other methods may be called meanwhile.

    Without a `directory` it works in one of its own, which `take` fills and `changes` reads.
    """

    def __init__(self, assembly: Assembly, directory: Path | None, setting: Setting) -> None:
        torch.set_num_threads(1)
        log_as_lines()
        self._own = None if directory is not None else TemporaryDirectory(prefix="fedraa-run-")
        self._directory = directory if self._own is None else Path(self._own.name)
        self._assembly, self._setting = assembly, setting
        self._metrics = Metrics(setting.label)
        self._progress: Progress | None = None
        self._pool: RayPool | None = None
        self._stop = Event()

    def execute(self, resume: bool) -> bool:
        """Begin the run, or go on with it; whether it came to its end. Leaves no worker behind."""
        assembly, experiment, setting = self._assembly, self._assembly.experiment, self._setting
        assert self._directory is not None
        store = ShardedStore.of(assembly) if experiment.server_shards > 1 else None
        pool = self._pool = RayPool.of(
            assembly,
            blocks=setting.blocks,
            crews=setting.crews,
            crew_of=setting.crew_of,
            hosts=None if setting.fingerprint is None else Hosts(experiment, setting.fingerprint),
            check=None if store is None else store.check,
        )
        try:
            return Runner(
                assembly,
                self._directory,
                pool,
                self._stop,
                self._watch,
                driver=setting.driver,
                description=setting.description,
                heed=self._metrics.heed,
                store=store,
            ).execute(resume=resume)
        finally:
            pool.close()
            if store is not None:
                store.close()

    def look(self) -> tuple[Progress | None, int]:
        """How far the run is, None before its first step, and how many workers have started."""
        return self._progress, 0 if self._pool is None else self._pool.busy()[1]

    def stop(self) -> None:
        self._stop.set()

    def take(self, files: Mapping[str, bytes]) -> None:
        """The run directory as the user has it."""
        assert self._directory is not None
        write_all(self._directory, files)

    def changes(self, seen: Mapping[str, Stamp]) -> Changes:
        """What is new in the run directory."""
        assert self._directory is not None
        return changes(self._directory, seen)

    def close(self) -> None:
        """Leaves no file behind."""
        if self._own is not None:
            self._own.cleanup()

    def _watch(self, progress: Progress) -> None:
        self._progress = progress
        self._metrics.watch(progress)
