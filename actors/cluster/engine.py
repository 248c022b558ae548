"""Run an experiment on Ray: start or join a cluster, start the server actor, and restart it after a failure."""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from actors.cluster.attach import attach
from actors.cluster.follower import GLANCE, ClusterLost, Follower, HealthMonitor, ServerFroze, ServerStuck
from actors.cluster.head import CLIENT, HeadWatch
from actors.cluster.operations import NAMESPACE, server_name
from actors.cluster.own_cluster import ClusterWatch, is_joined, is_ours, own_cluster
from actors.cluster.own_parts import carry_by_value, refuse_unsendable
from actors.cluster.placement import find_node, fits, group_of, groups, server_options
from actors.cluster.run_dir_sync import RunDirSync, synced
from actors.pool.data_host import fingerprint
from actors.pool.pulse import Heartbeat, actor_class
from actors.pool.serializer import Blocks, put_blocks
from actors.pool.shared_source import SharedSource
from actors.server.parameter_server import ParameterServer, Setting
from actors.server.relay import Audience
from fedraa.callbacks import RunStart
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.processes import cluster_address, cores
from fedraa.config.sections import ClusterOptions
from fedraa.engine.memory_check import Need
from fedraa.engine.resume import how_to_go_on
from fedraa.engine.run_description import describe
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.stop_signals import Stop, interruptible, terminable, uninterrupted
from fedraa.errors import InputError, Interrupted, RunFailed, ShardDied, without_effect
from fedraa.rundir.checkpoint import newest_first
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, EVENTS
from fedraa.rundir.run_lock import is_written, this_process

# Consecutive deaths of the server without a new checkpoint before the run fails.
DEATHS = 3
HEARTBEAT = Heartbeat()
# Seconds in which the server of a lost cluster may write a checkpoint.
LEAVE_SECONDS = 5.0
# Maximum seconds until the first sign of life of an actor that has its resources.
START_SECONDS = 50.0

logger = logging.getLogger(__name__)


def run_on_ray(spec: RunSpec, directory: Path, callbacks: CallbackList, resume: bool, restarts: int = 0) -> bool:
    """Run or resume an experiment and return True if it reached its end.

    The server is restarted from the last checkpoint when it dies, freezes or loses a shard. A private cluster that is
    lost is replaced up to `restarts` times. The callbacks run in this process.

    Args:
        spec: The run.
        directory: The run directory.
        callbacks: The user's callbacks.
        resume: True if the run continues from a checkpoint.
        restarts: The number of private clusters that may replace a lost one.

    Raises RunFailed, with the command that resumes the run, and CallbackRaised if a callback failed.
    """
    stop = Stop()
    refuse_unsendable(spec)
    ours = not is_joined() and cluster_address(spec.experiment) is None
    if ours and spec.experiment.placement != "pack":
        value = spec.experiment.placement
        raise without_effect("placement", value, "one node", "give --address, or leave it out")
    with interruptible(stop.ask):
        while True:
            callbacks.start(
                RunStart(spec.experiment, directory, spec.limits, resume, spec.figures, spec.method.asynchronous)
            )
            callbacks.prepare("starting Ray" if ours else "joining Ray")
            try:
                with cluster(spec.experiment, spec.experiment.clients), stop.well(), terminable(stop.set):
                    return _on_cluster(spec, directory, callbacks, resume, stop)
            except ClusterLost as lost:
                if stop.is_set():
                    raise _stopped(spec, directory) from None
                if not (restarts and ours):
                    hint = f"resume with: {how_to_go_on(spec, directory)}"
                    raise RunFailed("cluster", str(lost), hint=hint) from None
                restarts, resume = restarts - 1, True
                logger.warning("%s; the run goes on with a new cluster, as it may %d more times", lost, restarts)


def _on_cluster(spec: RunSpec, directory: Path, callbacks: CallbackList, resume: bool, stop: Stop) -> bool:
    """Run on the cluster that this process has joined.

    The server actor runs on this node, which has the run directory, or on another node. From another node its files
    are copied to this one.
    """
    experiment = spec.experiment
    attached = cluster_address(experiment)
    watch: HealthMonitor = ClusterWatch() if attached is None else HeadWatch(attached)
    own_node = ray.get_runtime_context().get_node_id()
    node = find_node(experiment.server_node or own_node)
    elsewhere = (attached or "").startswith(CLIENT) or node["NodeID"] != own_node
    memory = Need.of(spec).server if attached else 0.0
    if attached:
        carry_by_value([spec])
    hosted, setting = ray.put(_with_shared_source(spec.without_training_rows())), _setting(spec, directory, callbacks)
    deaths, last = 0, None
    with synced(directory) if elsewhere else nullcontext():
        while True:
            # If the first node has gone, another node may have the resource.
            if experiment.server_node:
                node = find_node(experiment.server_node)
            options = server_options(node, memory) | {"name": server_name(setting.label), "namespace": NAMESPACE}
            callbacks.prepare("starting the server and its workers")
            actor: Any = actor_class(ParameterServer).options(**options)
            server: Any = actor.remote(hosted, None if elsewhere else directory.resolve(), setting)
            try:
                sync = RunDirSync(directory) if elsewhere else None
                return Follower(server, setting, callbacks, stop, sync, watch).follow(resume)
            except ServerStuck:
                raise _stopped(spec, directory) from None
            except ClusterLost:
                if attached and not elsewhere:
                    _leave(server, directory)
                raise
            except (RayError, ShardDied, ServerFroze) as error:
                if (lost := watch.confirm_lost()) is not None:
                    raise ClusterLost(lost) from None
                if not isinstance(error, RayActorError | ShardDied | ServerFroze):
                    raise
                if (missing := _missing(str(error))) is not None:
                    raise InputError(
                        "address", f"node {node['NodeName']} {missing}", hint="install its dependencies there"
                    ) from None
                newest = next(iter(newest_first(directory / CHECKPOINTS)), None)
                deaths, last, resume = (deaths + 1 if newest == last else 1), newest, True
                wrong = _wrong(error)
                if deaths == DEATHS:
                    wrong += f", {DEATHS} times without a new checkpoint"
                    raise RunFailed("server", wrong, hint=f"resume with: {how_to_go_on(spec, directory)}") from None
                logger.warning("%s; it is started again from %s", wrong, newest or "the beginning")
                callbacks.start(
                    RunStart(experiment, directory, spec.limits, True, spec.figures, spec.method.asynchronous)
                )
            except ConnectionError:
                if ray.is_initialized():
                    raise
                raise ClusterLost(f"the connection to the Ray cluster at {attached} was lost") from None
            finally:
                if watch.lost() is None and ray.is_initialized():
                    ray.kill(server)


def _with_shared_source(spec: RunSpec) -> RunSpec:
    """Return the run with its data source, if any, in the object store."""
    if spec.data.source is None:
        return spec
    return replace(spec, data=replace(spec.data, source=SharedSource(ray.put(spec.data.source))))


def _leave(server: Any, directory: Path) -> None:
    """Wait until the server of a lost cluster has left the run directory.

    The server may outlive the cluster. It has to release the directory before another process can resume the run.
    """
    with suppress(Exception):
        server.stop.remote()
        give_up = time.monotonic() + LEAVE_SECONDS
        while is_written(directory / EVENTS) and time.monotonic() < give_up:
            time.sleep(GLANCE)


def _setting(spec: RunSpec, directory: Path, callbacks: CallbackList) -> Setting:
    experiment = spec.experiment
    data, asked = spec.data, groups(experiment, experiment.clients, experiment.device)
    starts = START_SECONDS if is_ours() and fits(asked) else None
    return Setting(
        blocks=Blocks(data.offsets, data.offsets[:0], []) if experiment.data_on_nodes else put_blocks(data),
        groups=asked,
        group_of=group_of(asked, experiment, experiment.clients),
        driver=this_process(),
        description=describe(spec, "eval" in callbacks.blocking),
        # Ray takes only UTF-8 in names of actors, and a path may hold any bytes.
        label=f"{socket.gethostname()}:{directory.resolve()}".encode(errors="backslashreplace").decode(),
        fingerprint=fingerprint(data) if experiment.data_on_nodes else None,
        audience=Audience(callbacks.subscribed, callbacks.blocking),
        heartbeat=replace(HEARTBEAT, starts=starts),
    )


def _wrong(error: Exception) -> str:
    if isinstance(error, ServerFroze):
        return str(error)
    return f"{'a shard of the server' if isinstance(error, ShardDied) else 'the server'} died"


def _stopped(spec: RunSpec, directory: Path) -> KeyboardInterrupt:
    """Return the error for a run that was stopped without a checkpoint of that moment."""
    if (directory / CONFIG).exists():
        return Interrupted(f"stopped as of the last checkpoint; resume with: {how_to_go_on(spec, directory)}")
    return KeyboardInterrupt("stopped before the run began")


def _missing(text: str) -> str | None:
    """Return the import error of a node that lacks a dependency, or None if the text reports no such error."""
    lines = [line.strip() for line in text.splitlines()]
    why = next((line for line in reversed(lines) if line.startswith(("ModuleNotFoundError", "ImportError"))), None)
    return None if why is None else f"cannot run fedraa ({why})"


@contextmanager
def cluster(options: ClusterOptions, clients: int) -> Iterator[None]:
    """Provide Ray for one or more runs: the joined cluster, the one at `address`, or a private one."""
    if is_joined():
        yield
    elif (address := cluster_address(options)) is None:
        with own_cluster(cores(options, clients)):
            yield
    else:
        attach(address)
        try:
            yield
        finally:
            with uninterrupted():
                ray.shutdown()
