"""The parameter server actor: hosts a run, its event loop and its workers."""

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from actors.cluster.metrics import Metrics, log_as_lines
from actors.cluster.own_folder import own_folder
from actors.cluster.run_dir_sync import Changes, Stamp, changes, write_all
from actors.pool.data_host import DataHosts
from actors.pool.executor import RayExecutor
from actors.pool.pulse import Heartbeat
from actors.pool.serializer import Blocks
from actors.server.relay import Audience, Relay
from actors.server.sharded_store import ShardedStore
from fedraa.callbacks.callback_list import CallbackList
from fedraa.callbacks.events import Event, Progress
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.session import RunSession
from fedraa.errors import CallbackRaised
from fedraa.messages import Index
from fedraa.rundir.atomic_files import PARTIAL
from fedraa.rundir.file_names import CHECKPOINTS


@dataclass(frozen=True, eq=False)
class Setting:
    """What a server needs besides the run: the clients' data, its workers, and who started it.

    `driver` and `description` are for the run directory; `label` names the run; with `fingerprint`, that of the
    training data, nodes read their shards themselves. `audience` are the callbacks in the driver;
    `heartbeat` says when who is silent counts as frozen.
    """

    blocks: Blocks
    groups: tuple[WorkerGroup, ...]
    group_of: Index
    driver: str
    description: dict[str, object]
    label: str
    fingerprint: int | None
    audience: Audience
    heartbeat: Heartbeat


class ParameterServer:
    """Runs one experiment to its end; the other methods may be called meanwhile.

    Without a `directory` it works in one of its own, which `take` fills and `changes` reads.
    """

    def __init__(self, spec: RunSpec, directory: Path | None, setting: Setting) -> None:
        torch.set_num_threads(1)
        log_as_lines()
        self._own = ExitStack()
        self._directory = directory or self._own.enter_context(own_folder()) / "run"
        self._directory.mkdir(exist_ok=True)
        self._spec, self._setting = spec, setting
        self._relay = Relay(CallbackList([Metrics(setting.label)], progress_seconds=0.0), setting.audience)
        self._executor: RayExecutor | None = None
        self._stop = threading.Event()

    def execute(self, resume: bool) -> bool:
        """Begin the run, or go on with it; whether it came to its end. Leaves no worker behind.

        Also False, with a checkpoint, after `fail`.
        """
        spec, experiment, setting = self._spec, self._spec.experiment, self._setting
        heartbeat = setting.heartbeat
        store = ShardedStore.of(spec, heartbeat) if experiment.server_shards > 1 else None
        executor = self._executor = RayExecutor.of(
            spec,
            blocks=setting.blocks,
            groups=setting.groups,
            group_of=setting.group_of,
            hosts=None if setting.fingerprint is None else DataHosts(experiment, setting.fingerprint, heartbeat),
            check=None if store is None else store.check,
            watch=None if store is None else store.watch,
            heartbeat=heartbeat,
        )
        try:
            return RunSession(
                spec,
                self._directory,
                executor,
                self._stop,
                self._relay,
                driver=setting.driver,
                description=setting.description,
                store=store,
            ).execute(resume=resume)
        except CallbackRaised as raised:
            if raised.error is not None:
                raise raised.error from None
            return False
        finally:
            self._relay.finish()
            executor.close()
            if store is not None:
                store.close()

    def look(self) -> tuple[Progress | None, int]:
        """How far the run is, None before its first step, and how many workers have started."""
        return self._relay.latest, 0 if self._executor is None else self._executor.busy()[1]

    def listen(self, asking: str | None, timeout: float) -> tuple[list[Event], Progress | None, int]:
        """The events for the driver's callbacks, as Relay.listen gives them, and what `look` says."""
        return self._relay.listen(asking, timeout), *self.look()

    def fail(self) -> None:
        """One of the driver's callbacks has failed: the run is to stop, with a checkpoint."""
        self._stop.set()
        self._relay.fail()

    def stop(self) -> None:
        self._stop.set()

    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return any((self._directory / CHECKPOINTS).glob("*" + PARTIAL))

    def take(self, files: Mapping[str, bytes]) -> None:
        """The run directory as the user has it."""
        write_all(self._directory, files)

    def changes(self, seen: Mapping[str, Stamp]) -> Changes:
        """What is new in the run directory."""
        return changes(self._directory, seen)

    def close(self) -> None:
        """Leaves no file behind."""
        self._own.close()
