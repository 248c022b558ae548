"""Runs an experiment on Ray: starts or joins a cluster, spawns the server actor, watches it."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.cluster.attach import CLIENT, attach
from actors.cluster.memory import lean
from actors.cluster.operations import NAMESPACE, server_name
from actors.cluster.own_parts import carry_by_value, importable, refuse_unsendable
from actors.cluster.placement import find_node, group_of, groups, server_options
from actors.cluster.run_dir_sync import RunDirSync, synced
from actors.pool.data_host import fingerprint
from actors.pool.serializer import Blocks, put_blocks
from actors.server.parameter_server import ParameterServer, Setting
from actors.server.relay import Audience
from actors.worker import worker
from fedraa.callbacks import Event, Progress, RunStart
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.experiment import Experiment
from fedraa.engine.description import describe
from fedraa.engine.resources import Need, cluster_address, workers
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.signals import interruptible, terminable, uninterrupted
from fedraa.errors import CallbackRaised, RunFailed, ShardDied
from fedraa.rundir.checkpoint import newest_first
from fedraa.rundir.layout import CHECKPOINTS
from fedraa.rundir.lock import this_process

LISTEN_SECONDS = 0.2  # that events may gather at the server where the run waits for no answer
PULL_SECONDS = 2.0  # between two looks at what is new in a run directory elsewhere
PATIENCE_SECONDS = 10.0  # with workers that do not start, before the user is told
DEATHS = 3  # of the server, without a checkpoint in between, before the run is given up

logger = logging.getLogger(__name__)


def run_on_ray(spec: RunSpec, directory: Path, callbacks: CallbackList, resume: bool) -> bool:
    """Run, or go on; whether to the end. A server that dies or loses a shard is started again from its last checkpoint.

    The server actor lives on this node, where the run directory is, or on another, whose files are brought here. The
    callbacks are called here; CallbackRaised if one has failed.
    """
    experiment, stop = spec.experiment, threading.Event()
    refuse_unsendable(spec)
    callbacks.start(RunStart(experiment, directory, spec.limits, resume, spec.figures))
    with interruptible(stop.set), cluster(experiment), terminable(stop.set):
        attached = cluster_address(experiment)
        own_node = ray.get_runtime_context().get_node_id()
        node = find_node(experiment.server_node or own_node)
        elsewhere = (attached or "").startswith(CLIENT) or node["NodeID"] != own_node
        memory = Need.of(spec).server if attached else 0.0
        if attached:
            carry_by_value([spec])
        hosted, setting = ray.put(spec.without_training_rows()), _setting(spec, directory, callbacks)
        deaths, last = 0, None
        with synced(directory) if elsewhere else nullcontext():
            while True:
                if experiment.server_node:  # may be another node that has the resource, if the first has gone
                    node = find_node(experiment.server_node)
                options = server_options(node, memory) | {"name": server_name(setting.label), "namespace": NAMESPACE}
                actor: Any = ray.remote(ParameterServer).options(**options)
                server: Any = actor.remote(hosted, None if elsewhere else directory.resolve(), setting)
                try:
                    follower = _Follower(server, setting, callbacks, stop, RunDirSync(directory) if elsewhere else None)
                    return follower.follow(resume)
                except (RayActorError, ShardDied) as error:
                    if (missing := _missing(str(error))) is not None:
                        raise ValueError(f"address: node {node['NodeName']} {missing}") from None
                    newest = next(iter(newest_first(directory / CHECKPOINTS)), None)
                    deaths, last, resume = (deaths + 1 if newest == last else 1), newest, True
                    who = "a shard of the server" if isinstance(error, ShardDied) else "the server"
                    if deaths == DEATHS:
                        wrong = f"{who} died {DEATHS} times without a new checkpoint"
                        raise RunFailed(f"{wrong}; go on with: fedraa resume {directory}") from None
                    logger.warning("%s died; it is started again from %s", who, newest or "the beginning")
                    callbacks.start(RunStart(experiment, directory, spec.limits, True, spec.figures))
                finally:
                    ray.kill(server)


@dataclass
class _Follower:
    """Listens to a server to the end of what it executes, and tells it to stop when asked to."""

    server: Any
    setting: Setting
    callbacks: CallbackList
    stop: threading.Event
    sync: RunDirSync | None
    _told: bool = False
    _asking: str | None = None  # who, of the callbacks, wants the run to end with the last event
    _raised: CallbackRaised | None = None
    _warn_at: float = field(default_factory=lambda: time.monotonic() + PATIENCE_SECONDS)
    _pull_at: float = 0.0

    def follow(self, resume: bool) -> bool:
        if self.sync is not None:
            ray.get(self.server.take.remote(self.sync.read()))
        end = self.server.execute.remote(resume)
        while not ray.wait([end], timeout=0)[0]:
            self._listen()
        try:
            self._listen()
            ended = bool(ray.get(end))
        except RayTaskError as error:
            if isinstance(error.cause, RunFailed | ValueError | ShardDied):
                raise error.cause from None
            raise
        finally:
            self._pull()
        if self._raised is not None:
            raise self._raised
        return ended

    def _listen(self) -> None:
        """Answers what came before and tells what came since; the server has been waiting for that, perhaps."""
        if self.stop.is_set() and not self._told:
            self.server.stop.remote()
            self._told = True
        events, progress, started = ray.get(self.server.listen.remote(self._asking, LISTEN_SECONDS))
        try:
            self._tell(events, progress)
        except CallbackRaised as raised:
            self._raised = raised
            ray.get(self.server.fail.remote())
        if progress is not None and time.monotonic() > self._pull_at:
            self._pull()
        asked = sum(group.workers for group in self.setting.groups)
        if started < asked and time.monotonic() > self._warn_at:
            self._warn_at = float("inf")
            needs = " or ".join(sorted({_words(group.needs) for group in self.setting.groups}))
            logger.warning("%d of %d workers have started; the others wait for %s each", started, asked, needs)

    def _tell(self, events: list[Event], progress: Progress | None) -> None:
        if self._raised is None:
            for event in events:
                self._asking = self.callbacks.tell(event)
            if progress is not None:
                self.callbacks.progress(progress)

    def _pull(self) -> None:
        """Brings what is new here. Not before the first step: a resumed log is cut back first."""
        if self.sync is not None:
            self.sync.apply(ray.get(self.server.changes.remote(self.sync.seen)))
            self._pull_at = time.monotonic() + PULL_SECONDS


def _setting(spec: RunSpec, directory: Path, callbacks: CallbackList) -> Setting:
    experiment = spec.experiment
    data = spec.data
    return Setting(
        blocks=Blocks(data.offsets, data.offsets[:0], []) if experiment.data_on_nodes else put_blocks(data),
        groups=groups(experiment),
        group_of=group_of(experiment),
        driver=this_process(),
        description=describe(spec, "eval" in callbacks.waits),
        label=f"{socket.gethostname()}:{directory.resolve()}",
        fingerprint=fingerprint(data) if experiment.data_on_nodes else None,
        audience=Audience(callbacks.hears, callbacks.waits),
    )


def _missing(text: str) -> str | None:
    """What of its dependencies a node lacks, if that is why an actor died there."""
    lines = [line.strip() for line in text.splitlines()]
    why = next((line for line in reversed(lines) if line.startswith(("ModuleNotFoundError", "ImportError"))), None)
    return None if why is None else f"cannot run fedraa ({why}); install its dependencies there"


def _words(needs: Any) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount)


@contextmanager
def cluster(experiment: Experiment) -> Iterator[None]:
    """Ray for one or more runs: the one already joined, the one at `address`, or one of our own.

    One of our own leaves nothing behind, neither processes nor files. Its processes import what workers need while the
    driver still prepares the run.
    """
    if ray.is_initialized():
        yield
        return
    address = cluster_address(experiment)
    with TemporaryDirectory(prefix="fedraa-", ignore_cleanup_errors=True) as directory:
        if address is None:
            with lean(), importable():
                ray.init(
                    num_cpus=max(os.cpu_count() or 1, workers(experiment) * experiment.threads_per_worker),
                    include_dashboard=False,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    _temp_dir=directory,
                    _system_config={"preload_python_modules": [worker.__name__]},
                )
        else:
            attach(address)
        try:
            yield
        finally:
            with uninterrupted():
                ray.shutdown()
