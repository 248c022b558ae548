"""A private Ray cluster on this machine.

The cluster listens only on loopback, has its files in a folder of this user, and requires a random token. Its processes
and files are removed at its end.
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

from actors.cluster.environment import set_variables
from actors.cluster.exit_message import explain_exit
from actors.cluster.memory import return_freed_memory
from actors.cluster.own_folder import is_own, own_folder
from actors.cluster.own_parts import share_import_paths
from actors.cluster.processes import is_stopped, kill_all_of, load_factor
from actors.ray_versions import (
    defer_sigterm,
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

# The number of attempts to start Ray is BASE_ATTEMPTS plus the machine's load per core, but at most MAX_ATTEMPTS.
BASE_ATTEMPTS = 2
MAX_ATTEMPTS = 10
RETRY_PAUSE_SECONDS = 2.0
# A cluster is lost if its raylet or GCS is stopped (SIGSTOP) longer than this.
FROZEN_SECONDS = 30.0
CENTRAL_PROCESSES = {"raylet": "raylet", "gcs_server": "GCS"}
# Ray imports this module in new worker processes. This file does not import it, because the import is slow.
PRELOADED = "actors.worker.preload"
RAYLET_DIED = str(
    RunFailed("engine", "Ray's raylet died while this process registered with it", hint="run the same command again")
)
TOKEN = "RAY_AUTH_TOKEN"
MODE = "RAY_AUTH_MODE"

logger = logging.getLogger(__name__)
# The cluster that `prestart_cluster` started. The list is empty after `own_cluster` has taken the cluster.
_prestarted: list[ExitStack] = []


@contextmanager
def prestart_cluster(cpus: int) -> Iterator[None]:
    """Start a private cluster early. A call of `own_cluster` in the block uses this cluster.

    While this process prepares the run, the processes of the cluster import the modules of workers.
    """
    with ExitStack() as waiting:
        waiting.enter_context(_start_cluster(cpus))
        _prestarted.append(waiting)
        try:
            yield
        finally:
            _prestarted.clear()


@contextmanager
def own_cluster(cpus: int) -> Iterator[None]:
    """Provide a private Ray cluster in the block: the prestarted cluster, or a new one with `cpus` CPUs.

    Raises RunFailed if the cluster did not start in several attempts.
    """
    with _prestarted.pop() if _prestarted else _start_cluster(cpus):
        yield


def is_joined() -> bool:
    """Return True if this process has joined a cluster.

    A cluster that `prestart_cluster` started does not count until `own_cluster` takes it.
    """
    return ray.is_initialized() and not _prestarted


@contextmanager
def _start_cluster(cpus: int) -> Iterator[None]:
    with _own_token(), hidden_worker_logs():
        for attempt in count(1):
            with own_folder() as folder, _shut_down_after(folder):
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
            logger.warning("engine: Ray did not start: %s; next attempt: %d of %d", wrong, attempt + 1, attempts)
            time.sleep(RETRY_PAUSE_SECONDS)


def is_private_cluster() -> bool:
    """Return True if `own_cluster` started the cluster that this process has joined."""
    folder = session_folder()
    return folder is not None and is_own(folder.parent)


class ClusterWatch:
    """A HealthMonitor of the raylet and the GCS that this process has started."""

    def __init__(self) -> None:
        self._stopped: dict[int, float] = {}

    def lost(self) -> str | None:
        """Return why the raylet or the GCS is lost, or None."""
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
    """Start Ray. Return the first line of the error if the start fails.

    Ctrl-C, SIGTERM and SIGHUP take effect after the start, because an interrupted start crashes this process.
    """
    try:
        with (
            defer_interrupts(),
            defer_sigterm(),
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
                # Other users could read Ray's default folder, so the cluster uses a private folder.
                _temp_dir=str(folder / "ray"),
                # Ray's hook for `uv run` would ask Ray's agents for an environment. This cluster has no agents.
                _skip_env_hook=True,
                _system_config={"preload_python_modules": [PRELOADED]},
            )
    # A failed start of Ray can raise any exception.
    except Exception as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


@contextmanager
def _shut_down_after(folder: Path) -> Iterator[None]:
    """Shut Ray down at the end of the block, even if some of Ray's processes do not run."""
    watch = ClusterWatch()
    try:
        yield
    finally:
        with ignore_interrupts():
            # A regular shutdown would wait for processes that cannot answer.
            if not ray.is_initialized() or watch.lost():
                kill_all_of(folder)
            # With dead processes, `ray.shutdown` can raise any exception.
            with suppress(Exception):
                ray.shutdown()
            kill_all_of(folder)


@contextmanager
def _own_token() -> Iterator[None]:
    """Set a random Ray token in the block: only processes with this token can use the cluster.

    The user's token is for other clusters, and its file may be missing. If the environment disables tokens, change
    nothing.
    """
    if os.environ.get(MODE, "").lower() == "disabled":
        yield
        return
    try:
        with set_variables({TOKEN: secrets.token_hex(32)}):
            reset_token()
            yield
    finally:
        reset_token()
