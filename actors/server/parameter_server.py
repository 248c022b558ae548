"""The parameter server as a Ray actor, which executes the run."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch

from actors.cluster.metrics import Metrics
from actors.cluster.own_folder import own_folder
from actors.cluster.run_dir_sync import Changes, Stamp, fill, read_changes
from actors.pool.data_host import DataHosts
from actors.pool.executor import RayExecutor
from actors.pool.liveness import Heartbeat
from actors.pool.serializer import Blocks
from actors.server.relay import Audience, Relay
from actors.server.sharded_store import ShardedStore
from fedraa.callbacks.callback_list import CallbackList
from fedraa.callbacks.events import Event, Progress
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.run_data import make_dealing
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.session import RunSession
from fedraa.errors import CallbackRaised
from fedraa.messages import Index
from fedraa.rundir.atomic_files import PARTIAL
from fedraa.rundir.file_names import CHECKPOINTS

# The concurrency group of `execute`. It has one thread, so a repeated call waits until the first call ends.
RUN = "run"


@dataclass(frozen=True, eq=False)
class Setting:
    """The inputs of a server, except the RunSpec.

    Attributes:
        blocks: The clients' training data.
        groups: The worker groups.
        group_of: The index of each client's worker group, int64 [clients].
        driver: The identity of the user's process. It is written to the run directory.
        description: A description of the run. It is written to the run directory.
        label: The name of the run on the cluster, MACHINE:DIRECTORY.
        fingerprint: The checksum of the data if every node reads the data set itself, otherwise None.
        audience: The kinds of events that the user's callbacks receive.
        heartbeat: The interval and the bounds of liveness probes.
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
    """The server of a run as a Ray actor: Fed-RAA's Progress Server (Algorithm 1) or another method's server.

    It contains a RunSession. The session creates the method's server (AsyncServer or RoundServer), and runs the event
    loop that calls the server.

    Responsibilities:
      - It holds the model, in this process or on shard actors (option `server_shards`).
      - It gets a client's fragment from the scheduler, and sends the task to a worker.
      - It applies client updates with a weight that depends on their staleness.
      - It writes checkpoints, event log and evaluations to the run directory.
      - It ends the run at its limit or on request, and stops all workers.

    The other methods of this class can be called while `execute` runs. Ray may repeat a call. A repeated call has no
    second effect.

    Args:
        spec: The run.
        directory: The run directory; None if the user's directory is on another node. The server then writes to a
            temporary directory. `take` fills it, and `changes` returns its new content.
        setting: The other inputs of the server.
    """

    def __init__(self, spec: RunSpec, directory: Path | None, setting: Setting) -> None:
        torch.set_num_threads(1)
        self._own = ExitStack()
        self._directory = directory or self._own.enter_context(own_folder()) / "run"
        self._directory.mkdir(exist_ok=True)
        self._spec = spec
        self._setting = setting
        self._relay = Relay(CallbackList([Metrics(setting.label)]), setting.audience)
        self._executor: RayExecutor | None = None
        self._stop = threading.Event()
        self._filling = threading.Lock()
        self._filled: dict[str, Stamp] | None = None
        self._outcome: Future[bool] | None = None

    @ray.method(concurrency_group=RUN)
    def execute(self, resume: bool) -> bool:
        """Run or resume the experiment, then stop all workers. Return True if the run reached its end.

        A call of `fail` ends the run with a checkpoint, and the result is False. If Ray repeats the call of `execute`,
        the second call has the result or error of the first call.
        """
        if self._outcome is None:
            self._outcome = Future()
            try:
                self._outcome.set_result(self._execute(resume))
            # Every exception that ends the run is the result of this call.
            except Exception as error:
                self._outcome.set_exception(error)
        return self._outcome.result()

    def _execute(self, resume: bool) -> bool:
        spec = self._spec
        experiment = spec.experiment
        setting = self._setting
        heartbeat = setting.heartbeat
        store = None
        shard_checks: dict[str, Any] = {}
        if experiment.server_shards > 1:
            store = ShardedStore.of(spec, heartbeat)
            shard_checks = {"check": store.check, "watch": store.watch}
        hosts = None
        if setting.fingerprint is not None:
            dealing = make_dealing(experiment)
            hosts = DataHosts(experiment, dealing, setting.fingerprint, heartbeat)
        executor = self._executor = RayExecutor.of(
            spec,
            blocks=setting.blocks,
            groups=setting.groups,
            group_of=setting.group_of,
            hosts=hosts,
            heartbeat=heartbeat,
            **shard_checks,
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
        """Return the run's progress (None before its first step) and the number of started workers."""
        started = 0
        if self._executor is not None:
            _, started = self._executor.busy()
        return self._relay.latest, started

    def take_events(self, number: int, asking: str | None, timeout: float) -> tuple[list[Event], Progress | None, int]:
        """Return new events for the user's callbacks, the run's progress and the number of started workers.

        `Relay.take_events` documents the arguments.
        """
        return self._relay.take_events(number, asking, timeout), *self.look()

    def fail(self) -> None:
        """Stop the run with a checkpoint, because one of the user's callbacks raised an exception."""
        self._stop.set()
        self._relay.fail()

    def stop(self) -> None:
        self._stop.set()

    def is_saving(self) -> bool:
        """Return True while the run writes a checkpoint."""
        return any((self._directory / CHECKPOINTS).glob("*" + PARTIAL))

    def take(self, files: Mapping[str, bytes]) -> dict[str, Stamp]:
        """Copy the files of the user's run directory into the server's directory. Return the result of `fill`.

        A second call only returns the same result.
        """
        with self._filling:
            if self._filled is None:
                self._filled = fill(self._directory, files)
            return self._filled

    def changes(self, seen: Mapping[str, Stamp]) -> Changes:
        """Return the changes of the run directory since `seen`, the last known size and time of each file."""
        return read_changes(self._directory, seen)

    def close(self) -> None:
        """Remove the temporary files of this actor. It is killed next, and a killed actor removes no files."""
        self._own.close()
