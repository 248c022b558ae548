"""A private Ray cluster on this machine.

The cluster listens only on loopback. Its files are in a folder that only this user can enter. It requires a random
token, which exists only in the environment of its processes. If the cluster does not start, fedraa tries again. When
the cluster ends, its processes are killed and its files removed.
"""

import logging
import math
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import ray

from actors.cluster.exit_message import explain_exit
from actors.cluster.memory import return_freed_memory
from actors.cluster.own_folder import is_own, own_folder
from actors.cluster.own_parts import share_import_paths
from actors.cluster.processes import is_stopped, kill_all_of, load_factor
from actors.ray_versions import (
    hidden_tips,
    hidden_worker_logs,
    minimal_ray,
    on_loopback,
    reset_token,
    session_folder,
    started_processes,
)
from fedraa.engine.stop_signals import defer_interrupts, ignore_interrupts
from fedraa.errors import RunFailed

# The maximum number of attempts to start Ray is this number plus the machine's load per core (rounded down, at least
# 1), but never more than `MAX_ATTEMPTS`.
BASE_ATTEMPTS = 2
MAX_ATTEMPTS = 10
# Seconds between two attempts to start Ray.
PAUSE_SECONDS = 2.0
# The cluster counts as lost if its raylet or its GCS is stopped (for example by SIGSTOP) for this number of seconds.
FROZEN_SECONDS = 30.0
CENTRAL_PROCESSES = {"raylet": "raylet", "gcs_server": "GCS"}
# The name of a module that Ray imports in new worker processes. The driver does not import it, because the import is
# slow.
PRELOADED = "actors.worker.preload"
RAYLET_DIED = str(
    RunFailed("engine", "Ray's raylet died while this process registered with it", hint="run the same command again")
)
TOKEN = "RAY_AUTH_TOKEN"
MODE = "RAY_AUTH_MODE"

logger = logging.getLogger(__name__)
# The cluster that `prestart_cluster` has started, until `own_cluster` takes it; empty if there is no such cluster.
_begun: list[ExitStack] = []


@contextmanager
def prestart_cluster(cpus: int) -> Iterator[None]:
    """Start a private cluster early, for the next call of `own_cluster`.

    The processes of the cluster import the modules of workers while this process prepares the run. If the `with` block
    does not call `own_cluster`, the cluster ends with the block.
    """
    with ExitStack() as waiting:
        waiting.enter_context(_start_cluster(cpus))
        _begun.append(waiting)
        try:
            yield
        finally:
            _begun.clear()


@contextmanager
def own_cluster(cpus: int) -> Iterator[None]:
    """Provide a private Ray cluster for the `with` block: the one that `prestart_cluster` has started, or a new one.

    Args:
        cpus: The number of CPUs that a new cluster declares.

    Raises:
        RunFailed: The cluster did not start in several attempts.
    """
    with _begun.pop() if _begun else _start_cluster(cpus):
        yield


def is_joined() -> bool:
    """Return True if this process has joined a cluster. A cluster that is only prestarted does not count."""
    return ray.is_initialized() and not _begun


@contextmanager
def _start_cluster(cpus: int) -> Iterator[None]:
    with _own_token(), hidden_worker_logs():
        for attempt in count(1):
            with own_folder() as folder, _ended_in(folder):
                wrong = _start_ray(folder, cpus)
                if wrong is None:
                    yield
                    return
            attempts = min(MAX_ATTEMPTS, BASE_ATTEMPTS + math.floor(load_factor()))
            if attempt >= attempts:
                raise RunFailed(
                    "engine",
                    f"Ray did not start in {attempt} attempts; the last error is: {wrong}",
                    hint="try again when the machine is less busy, or choose --engine local",
                )
            logger.warning("Ray did not start: %s; next attempt: %d of %d", wrong, attempt + 1, attempts)
            time.sleep(PAUSE_SECONDS)


def is_private_cluster() -> bool:
    """Return True if `own_cluster` started the cluster that this process has joined."""
    folder = session_folder()
    return folder is not None and is_own(folder.parent)


class ClusterWatch:
    """A HealthMonitor of the raylet and the GCS that this process has started."""

    def __init__(self) -> None:
        self._stopped: dict[int, float] = {}

    def lost(self) -> str | None:
        """Return the reason if the raylet or the GCS died or froze, otherwise None."""
        for kind, name in CENTRAL_PROCESSES.items():
            for process in started_processes(kind):
                if process.poll() is not None:
                    return f"Ray's {name} died"
                if self._is_frozen(process.pid):
                    return f"Ray's {name} froze"
        return None

    def confirm_lost(self) -> str | None:
        return self.lost()

    def _is_frozen(self, process: int) -> bool:
        if not is_stopped(process):
            self._stopped.pop(process, None)
            return False
        now = time.monotonic()
        return now - self._stopped.setdefault(process, now) > FROZEN_SECONDS


def _start_ray(folder: Path, cpus: int) -> str | None:
    """Start Ray. Return None, or the first line of the error if the start fails.

    Ctrl-C is deferred until Ray has started. An interruption while this process connects to Ray would cause a
    segmentation fault.
    """
    try:
        with (
            defer_interrupts(),
            explain_exit(RAYLET_DIED),
            minimal_ray(),
            return_freed_memory(),
            share_import_paths(),
            on_loopback(),
            hidden_tips(),
        ):
            ray.init(
                num_cpus=cpus,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                # Ray makes its folder readable for all users, so the folder is created inside a private folder.
                _temp_dir=str(folder / "ray"),
                # Ray's hook for `uv run` requests a runtime environment. Ray's agents would create it, but this cluster
                # has no agents.
                _skip_env_hook=True,
                _system_config={"preload_python_modules": [PRELOADED]},
            )
    # A failed start of Ray can raise any exception.
    except Exception as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


@contextmanager
def _ended_in(folder: Path) -> Iterator[None]:
    """Shut Ray down at the end of the block, even if some processes of Ray did not start or have died."""
    watch = ClusterWatch()
    try:
        yield
    finally:
        with ignore_interrupts():
            # If Ray did not start or is lost, a regular shutdown would wait for processes that cannot answer. Therefore
            # all processes are killed before.
            if not ray.is_initialized() or watch.lost():
                kill_all_of(folder)
            # If a process of Ray is dead, `ray.shutdown` can raise any exception.
            with suppress(Exception):
                ray.shutdown()
            kill_all_of(folder)


@contextmanager
def _own_token() -> Iterator[None]:
    """Set a random token for this cluster during the block, unless the environment has a token or disables tokens."""
    if {TOKEN, f"{TOKEN}_PATH"} & os.environ.keys() or os.environ.get(MODE, "").lower() == "disabled":
        yield
        return
    os.environ[TOKEN] = secrets.token_hex(32)
    reset_token()
    try:
        yield
    finally:
        del os.environ[TOKEN]
        reset_token()
