"""Commands that list, stop and fetch the runs of a cluster. They find a run by the name of its server actor."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.attach import join_cluster
from actors.cluster.placement import find_node
from actors.cluster.run_dir_sync import RunDirSync, write_all
from fedraa.callbacks import Progress
from fedraa.errors import InputError, RunFailed, read_failure
from fedraa.rundir.file_names import CONFIG
from fedraa.rundir.reserved_directory import refuse_used

NAMESPACE = "fedraa"
HEAD_RESOURCE = "node:__internal_head__"
ANSWER_SECONDS = 10.0


def server_name(label: str) -> str:
    """Return a unique name for a new server actor. A restarted server of the same run has a different name."""
    return f"{label}#{uuid4().hex[:12]}"


def list_runs(address: str) -> list[tuple[str, Progress | None, int | None]]:
    """Return the label MACHINE:DIRECTORY, the progress and the number of started workers of each run.

    The number is None if the server of the run does not answer.
    """
    join_cluster(address)
    try:
        return [(label, progress, started) for label, _, progress, started in _find_servers()]
    finally:
        ray.shutdown()


def stop_run(run: str, address: str) -> None:
    """Ask a run to write a checkpoint and to end.

    Args:
        run: The label MACHINE:DIRECTORY or the directory of the run.
        address: The address of the cluster.

    Raises:
        InputError: The cluster has no run, or more than one run, with this label or directory.
        RunFailed: The run does not answer.
    """
    join_cluster(address)
    try:
        servers = list(_find_servers())
        directory = str(Path(run).absolute())
        wanted = [server for label, server, *_ in servers if run == label or directory == label.partition(":")[2]]
        if not servers:
            raise InputError("run", f"no run trains at {address}, and there is nothing to stop", got=run)
        if len(wanted) != 1:
            labels = ", ".join(sorted(label for label, *_ in servers))
            raise InputError(
                "run", f"{len(wanted)} runs at {address} have this name", got=run, expected=f"one of {labels}"
            )
        try:
            ray.get(wanted[0].stop.remote(), timeout=ANSWER_SECONDS)
        except RayActorError:
            raise InputError("run", "it has ended, and there is nothing to stop", got=run) from None
        except GetTimeoutError:
            problem = f"{run} did not answer within {ANSWER_SECONDS:g} s"
            raise RunFailed("run", problem, hint="run the same command again") from None
    finally:
        ray.shutdown()


def fetch_run(run: Path, node: str | None, address: str, out: Path) -> None:
    """Copy a run directory from a node of a cluster to this machine.

    Args:
        run: The run directory on the node.
        node: The id, address or name of the node; None for the head node.
        address: The address of the cluster.
        out: The directory to write, which must be new or empty.

    Raises:
        InputError: The node does not exist, its directory is not a run or cannot be read, or `out` is not empty.
        RunFailed: The node was lost.
    """
    refuse_used(out)
    join_cluster(address)
    try:
        on_node = NodeAffinitySchedulingStrategy(find_node(node or HEAD_RESOURCE, "node")["NodeID"], soft=False)
        read = ray.remote(_read_files).options(num_cpus=0, scheduling_strategy=on_node)
        try:
            files = ray.get(read.remote(run))
        except RayTaskError as error:
            problem = f"{run} on that node cannot be read: {read_failure(error.cause)}"
            raise InputError("run", problem) from None
        except RayError:
            raise RunFailed("node", "it was lost during the copy", hint="run the same command again") from None
        if CONFIG not in files:
            raise InputError("run", f"{run} on that node is not a run directory; it has no {CONFIG}")
        write_all(out, files)
    finally:
        ray.shutdown()


def _read_files(directory: Path) -> dict[str, bytes]:
    return RunDirSync(directory).read()


def _find_servers() -> Iterator[tuple[str, Any, Progress | None, int | None]]:
    """Yield the label, the server actor, the progress and the number of started workers of each run.

    The number is None if the server does not answer in time, for example because it is starting.
    """
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE:
            progress = started = None
            try:
                server: Any = ray.get_actor(actor["name"], namespace=NAMESPACE)
                with suppress(GetTimeoutError):
                    progress, started = ray.get(server.look.remote(), timeout=ANSWER_SECONDS)
            # The server has ended.
            except (ValueError, RayActorError):
                continue
            yield actor["name"].rpartition("#")[0], server, progress, started
