"""The engine `ray`. It starts or joins a cluster, starts the server actor, and restarts this actor if it fails."""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    RayActorError,
    RayError,
    RuntimeEnvSetupError,
)

from actors import runtime
from actors.cluster.attach import PACKAGES, join_cluster, joined_address, refuse_other_cluster
from actors.cluster.exit_message import explain_exit
from actors.cluster.follower import CHECK_SECONDS, ClusterLost, Follower, HealthMonitor, ServerFroze, ServerStuck
from actors.cluster.head import CLIENT, HeadWatch
from actors.cluster.operations import NAMESPACE, server_name
from actors.cluster.own_cluster import ClusterWatch, is_joined, is_private_cluster, own_cluster
from actors.cluster.own_parts import carry_by_value
from actors.cluster.placement import (
    find_missing_resource,
    find_node,
    group_of,
    make_worker_groups,
    refuse_missing_resources,
    server_options,
)
from actors.cluster.run_dir_sync import RunDirSync, register_writer
from actors.pool.data_host import data_checksum
from actors.pool.liveness import Heartbeat, actor_class
from actors.pool.serializer import Blocks, put_blocks
from actors.pool.shared_source import SharedSource
from actors.ray_versions import hidden_worker_logs
from actors.server.parameter_server import RUN, ParameterServer, Setting
from actors.server.relay import Audience
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.processes import ADDRESS_VARIABLE, cluster_address, count_cores
from fedraa.config.sections import ClusterOptions
from fedraa.engine.memory_check import Need
from fedraa.engine.resume import extend_limits, resume_command, suggest_continuation
from fedraa.engine.run_description import describe_run
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.run_warnings import issue_warnings
from fedraa.engine.sendable import refuse_unsendable
from fedraa.engine.stop_signals import Stop, ignore_interrupts, stop_on_interrupt, stop_on_termination
from fedraa.errors import InputError, Interrupted, RunFailed, ShardDied, last_line, no_effect_error
from fedraa.rundir.atomic_files import escape_bytes
from fedraa.rundir.checkpoint import newest_first
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, EVENTS
from fedraa.rundir.run_lock import is_written, this_process

# The run fails if the server dies MAX_SERVER_DEATHS times without a new checkpoint.
MAX_SERVER_DEATHS = 3
HEARTBEAT = Heartbeat()
# After the loss of a cluster, its server gets this time to write a checkpoint.
LOST_SERVER_SECONDS = 5.0
# A new actor must answer within this time. The limit does not apply if the actor may have to wait for resources.
START_SECONDS = 50.0

logger = logging.getLogger(__name__)


def run_on_ray(
    spec: RunSpec,
    directory: Path,
    callbacks: CallbackList,
    *,
    resume: bool,
    extend: bool = False,
    restarts: int = 0,
) -> bool:
    """Run or resume an experiment on Ray. Return True if the run reached its end.

    A server that dies, freezes or loses a shard is restarted from the last checkpoint.

    Args:
        spec: The run.
        directory: The run directory.
        callbacks: The user's callbacks, which are called in this process.
        resume: True if the run continues from a checkpoint.
        extend: True if the run gets the limits of `spec`, which are larger than before.
        restarts: The maximum number of new private clusters after a private cluster was lost.

    Raises:
        InputError: An option has no effect on this cluster, or a component cannot be sent to Ray's processes.
        RunFailed: The run failed. The error message has the command that resumes the run.
        CallbackRaised: A callback raised an exception.
    """
    stop = Stop()
    is_private = not is_joined() and cluster_address(spec.experiment) is None
    if restarts and not is_private:
        raise no_effect_error("restarts", restarts, "a cluster that this process has joined")
    refuse_unsendable(spec)
    if is_private and spec.experiment.placement != "pack":
        value = spec.experiment.placement
        raise no_effect_error("placement", value, "one node", "give --address, or leave it out")
    with stop_on_interrupt(stop.ask):
        while True:
            callbacks.start(spec.make_start(directory, resumed=resume))
            callbacks.prepare("starting Ray" if is_private else "joining Ray")
            try:
                with (
                    provide_cluster(spec.experiment, spec.experiment.client_count),
                    stop.honoured(),
                    stop_on_termination(stop.set),
                ):
                    return _run_on_cluster(spec, directory, callbacks, stop, resume=resume, extend=extend)
            except ClusterLost as lost:
                if stop.is_set():
                    raise _stop_error(spec, directory) from None
                if not (restarts and is_private):
                    raise RunFailed("cluster", str(lost), hint=suggest_continuation(spec, directory)) from None
                restarts -= 1
                resume = True
                logger.warning("cluster: %s; the run resumes on a new cluster; restarts left: %d", lost, restarts)


def _run_on_cluster(
    spec: RunSpec, directory: Path, callbacks: CallbackList, stop: Stop, *, resume: bool, extend: bool
) -> bool:
    """Run an experiment on the joined cluster. Return True if the run reached its end.

    A server on another node writes the run directory there, and the files are copied to this node. `run_on_ray`
    documents the arguments.
    """
    experiment = spec.experiment
    attached = joined_address()
    watch: HealthMonitor = ClusterWatch()
    if attached is not None:
        watch = HeadWatch(attached)
    own_node = runtime.node_id()
    node = find_node(experiment.server_node or own_node)
    elsewhere = (attached or "").startswith(CLIENT) or node["NodeID"] != own_node
    server_directory = None if elsewhere else directory.resolve()
    memory = 0.0
    if attached:
        memory = Need.of(spec).server
        carry_by_value([spec])
    hosted = runtime.put(with_shared_source(spec.without_training_rows()))
    setting = _make_setting(spec, directory, callbacks)
    if extend:
        extend_limits(directory, spec)
    deaths = 0
    last = None
    with _explain_lost_raylet(spec, directory, attached), register_writer(directory) if elsewhere else nullcontext():
        while True:
            # `server_node` may name a resource, which another node may also have.
            if experiment.server_node and deaths:
                node = _find_node_again(experiment.server_node, spec, directory)
            options = server_options(node, memory) | {"name": server_name(setting.label), "namespace": NAMESPACE}
            callbacks.prepare("starting the server and its workers")
            actor: Any = actor_class(ParameterServer, {RUN: 1}).options(**options)
            server: Any = actor.remote(hosted, server_directory, setting)
            try:
                sync = RunDirSync(directory) if elsewhere else None
                return Follower(server, setting, callbacks, stop, sync, watch).follow(resume)
            except ServerStuck:
                raise _stop_error(spec, directory) from None
            except ClusterLost:
                if attached and not elsewhere:
                    _await_release(server, directory)
                raise
            except (RayError, ShardDied, ServerFroze) as error:
                _check_is_death(error, watch, node["NodeName"])
                newest = next(iter(newest_first(directory / CHECKPOINTS)), None)
                if newest != last:
                    deaths = 0
                deaths += 1
                last = newest
                resume = True
                wrong = _death_text(error)
                if deaths == MAX_SERVER_DEATHS:
                    wrong += f", {MAX_SERVER_DEATHS} times without a new checkpoint"
                    raise RunFailed("server", wrong, hint=suggest_continuation(spec, directory)) from None
                logger.warning("server: %s; it is started again from %s", wrong, newest or "the beginning")
                callbacks.start(spec.make_start(directory, resumed=True))
            except ConnectionError:
                if ray.is_initialized():
                    raise
                raise ClusterLost(f"the connection to the Ray cluster at {attached} was lost") from None
            finally:
                if watch.lost() is None and ray.is_initialized():
                    runtime.kill(server)


def _explain_lost_raylet(spec: RunSpec, directory: Path, attached: str | None) -> AbstractContextManager[None]:
    """Print how to resume the run if this process dies in the block because its raylet has died.

    Ray ends a process whose raylet has died, without an exception. A ClusterWatch notices earlier that the raylet of a
    cluster that this process started has died. A Ray client has no raylet.
    """
    if attached is None or attached.startswith(CLIENT):
        return nullcontext()
    problem = "the raylet of this node has died, or this process was killed"
    hint = f"start Ray on this node again, and resume with: {resume_command(spec, directory)}"
    return explain_exit(str(RunFailed("cluster", problem, hint=hint)))


def _find_node_again(wanted: str, spec: RunSpec, directory: Path) -> dict[str, Any]:
    """Return the node on which a dead server is restarted. Raise RunFailed if no node matches.

    Args:
        wanted: The option `server_node`: a node's id, address, name or resource.
        spec: The run.
        directory: The run directory.
    """
    try:
        return find_node(wanted)
    except InputError:
        hint = f"start the node again; {suggest_continuation(spec, directory)}"
        raise RunFailed("server", f"its node {wanted} has left the cluster", hint=hint) from None


def _check_is_death(error: Exception, watch: HealthMonitor, node: str) -> None:
    """Do nothing if the server or a shard has died, because a restart can help. Otherwise raise an error.

    Args:
        error: The error of the run. It is raised if none of the errors below applies.
        watch: The health check of the cluster.
        node: The name of the server's node.

    Raises:
        ClusterLost: The cluster is lost.
        InputError: A Python package is not installed on the server's node.
        RunFailed: The server's node cannot install the code of fedraa.
    """
    lost = watch.confirm_lost()
    if lost is not None:
        raise ClusterLost(lost) from None
    if isinstance(error, RuntimeEnvSetupError):
        problem = f"node {node} cannot install the code of fedraa: {last_line(error)}"
        raise RunFailed("server", problem, hint="check the disk and the network of this node") from None
    if not isinstance(error, RayActorError | ActorUnschedulableError | ShardDied | ServerFroze):
        raise error
    missing = _find_import_error(str(error))
    if missing is not None:
        hint = "install its dependencies there"
        # fedraa sends its code to the cluster only if it has joined the cluster itself.
        if missing.endswith(tuple(f"'{package}')" for package in PACKAGES)):
            hint = "give the run the address of the cluster instead of calling ray.init, or install fedraa there"
        raise InputError("address", f"node {node} {missing}", hint=hint) from None


def with_shared_source(spec: RunSpec) -> RunSpec:
    """Return the run. If it has a data source, the source is moved to Ray's object store."""
    if spec.data.source is None:
        return spec
    return replace(spec, data=replace(spec.data, source=SharedSource(runtime.put(spec.data.source))))


def _await_release(server: Any, directory: Path) -> None:
    """Ask the server of a lost cluster to stop, and wait until this server no longer writes to the run directory.

    The server actor may still run after its cluster is lost. It must end before another process resumes the run.
    """
    # A call in a lost cluster can raise any exception.
    with suppress(Exception):
        server.stop.remote()
        give_up = time.monotonic() + LOST_SERVER_SECONDS
        while is_written(directory / EVENTS) and time.monotonic() < give_up:
            time.sleep(CHECK_SECONDS)


def _make_setting(spec: RunSpec, directory: Path, callbacks: CallbackList) -> Setting:
    experiment = spec.experiment
    data = spec.data
    checksum = None
    if experiment.data_on_nodes:
        blocks = Blocks.without_samples(data)
        checksum = data_checksum(data)
    else:
        blocks = put_blocks(data)
    requested = make_worker_groups(experiment, experiment.client_count, experiment.device)
    starts = None
    if is_private_cluster():
        refuse_missing_resources(requested)
        starts = START_SECONDS
    issue_warnings([find_missing_resource(requested)])
    return Setting(
        blocks=blocks,
        groups=requested,
        group_of=group_of(requested, experiment, experiment.client_count),
        driver=this_process(),
        description=describe_run(spec, "eval" in callbacks.blocking),
        # Ray accepts only UTF-8 in names of actors. A path may have other bytes.
        label=escape_bytes(f"{socket.gethostname()}:{directory.resolve()}"),
        fingerprint=checksum,
        audience=Audience(callbacks.subscribed, callbacks.blocking),
        heartbeat=replace(HEARTBEAT, starts=starts),
    )


def _death_text(error: Exception) -> str:
    if isinstance(error, ServerFroze):
        return str(error)
    if isinstance(error, ShardDied):
        return "a shard of the server died"
    if isinstance(error, ActorUnavailableError):
        return "the server could not be reached"
    return "the server died"


def _stop_error(spec: RunSpec, directory: Path) -> KeyboardInterrupt:
    """Return the exception for a run that the user stopped before its server wrote a checkpoint."""
    if not (directory / CONFIG).exists():
        return KeyboardInterrupt("stopped before the run began")
    return Interrupted(f"stopped without a new checkpoint; {suggest_continuation(spec, directory)}")


def _find_import_error(text: str) -> str | None:
    for line in reversed(text.splitlines()):
        if line.strip().startswith(("ModuleNotFoundError", "ImportError")):
            return f"cannot run fedraa ({line.strip()})"
    return None


@contextmanager
def provide_cluster(options: ClusterOptions, clients: int) -> Iterator[None]:
    """Join a Ray cluster in the block.

    If the process has already joined a cluster, the block uses that cluster. If not, the block joins the cluster that
    the option `address` or the variable RAY_ADDRESS names. Without both, the block starts a private cluster.

    Raises InputError if the cluster cannot be joined, or if the process has joined another one than `address`.
    """
    address = cluster_address(options)
    if is_joined():
        if options.address is not None:
            refuse_other_cluster(options.address)
        yield
    elif address is None:
        with own_cluster(count_cores(options, clients)):
            yield
    else:
        with hidden_worker_logs():
            try:
                join_cluster(address)
            except InputError as error:
                if options.address is None:
                    raise error.with_field(ADDRESS_VARIABLE) from None
                raise
            try:
                yield
            finally:
                with ignore_interrupts():
                    ray.shutdown()
