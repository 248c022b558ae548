"""A Ray cluster of our own on this machine: tried again until it starts, closed to others, leaves nothing behind.

It listens on loopback alone, its files are in a folder that only this user can enter, and it takes a token that is made
for it and kept in the environment of its processes. Ray has no public way to the first, nor to ask whether its two
central processes live: this file needs private names of it, as `pyproject.toml` says.
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
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants, worker

from actors.cluster.bare_ray import bare_ray
from actors.cluster.memory import lean
from actors.cluster.own_folder import is_own, own_folder
from actors.cluster.own_parts import importable
from actors.cluster.processes import crowded, is_stopped, kill_all_of
from fedraa.engine.stop_signals import deferred, uninterrupted
from fedraa.errors import RunFailed

private: Any = worker
raylet: Any = _raylet  # made by a compiler, of which no types are known
TRIES = 2  # of a start on a quiet machine, and one more for each time that it is loaded over
MOST_TRIES = 10
PAUSE_SECONDS = 2.0  # between two tries
FROZEN_SECONDS = 30.0  # for which one of Ray's own processes may stand still
CENTRAL = {"raylet": "raylet", "gcs_server": "GCS"}
PRELOADED = "actors.worker.worker"  # not imported here: that takes as long as all else before a cluster starts
TOKEN, MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"

logger = logging.getLogger(__name__)
_begun: list[ExitStack] = []  # the cluster that was begun, until somebody takes it


@contextmanager
def begun(cpus: int) -> Iterator[None]:
    """A cluster starts now; the next `own_cluster` is this one. It ends with that one, or here if there is none.

    Its processes import what workers need while this one still prepares the run.
    """
    with ExitStack() as waiting:
        waiting.enter_context(_started(cpus))
        _begun.append(waiting)
        try:
            yield
        finally:
            _begun.clear()


@contextmanager
def own_cluster(cpus: int) -> Iterator[None]:
    """Ray with so many slots: the one that was begun, or a new one.

    Raises RunFailed, one sentence, if it does not start, a number of tries that grows with the machine's load.
    """
    with _begun.pop() if _begun else _started(cpus):
        yield


def is_joined() -> bool:
    """Whether this process is in a cluster that somebody uses: its own, or another."""
    return ray.is_initialized() and not _begun


@contextmanager
def _started(cpus: int) -> Iterator[None]:
    with _own_token(), _quiet():
        for attempt in count(1):
            with own_folder() as folder, _ended_in(folder):
                if (wrong := _start(folder, cpus)) is None:
                    yield
                    return
            tries = min(MOST_TRIES, TRIES + math.floor(crowded()))
            if attempt >= tries:
                raise RunFailed(
                    "engine",
                    f"Ray did not start, {attempt} times, at last because: {wrong}",
                    hint="try again when the machine has less to do, or choose --engine local",
                )
            logger.warning("Ray did not start: %s; it is tried again, %d of %d", wrong, attempt + 1, tries)
            time.sleep(PAUSE_SECONDS)


def is_ours() -> bool:
    """Whether the cluster that this process is joined to was started by `own_cluster`."""
    node = private._global_node
    return node is not None and is_own(Path(node.get_temp_dir_path()).parent)


class ClusterWatch:
    """Looks after Ray's central processes, if this process has started them."""

    def __init__(self) -> None:
        self._stopped: dict[int, float] = {}

    def lost(self) -> str | None:
        """What has happened to one of them."""
        node = private._global_node
        for kind, name in CENTRAL.items():
            for started in [] if node is None else node.all_processes.get(kind, ()):
                if started.process.poll() is not None:
                    return f"Ray's {name} died"
                if self._stands_still(started.process.pid):
                    return f"Ray's {name} froze"
        return None

    def made_sure(self) -> str | None:
        return self.lost()

    def _stands_still(self, process: int) -> bool:
        if not is_stopped(process):
            self._stopped.pop(process, None)
            return False
        now = time.monotonic()
        return now - self._stopped.setdefault(process, now) > FROZEN_SECONDS


def _start(folder: Path, cpus: int) -> str | None:
    """Why Ray could not be started, whatever goes wrong there; None if it is.

    Where Ctrl-C breaks off its last step, the connection, this process ends with a segmentation fault.
    """
    try:
        with deferred(), bare_ray(), lean(), importable(), _on_loopback():
            ray.init(
                num_cpus=cpus,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                _temp_dir=str(folder / "ray"),  # which Ray opens to all users; not so the one above it
                _skip_env_hook=True,  # as that of `uv run`, which asks for an environment that bare Ray cannot make
                _system_config={"preload_python_modules": [PRELOADED]},
            )
    except Exception as error:  # of Ray, which has many kinds for a start that failed
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None


@contextmanager
def _ended_in(folder: Path) -> Iterator[None]:
    """Afterwards Ray is shut down, also one that has not started whole, or has lost a process."""
    watch = ClusterWatch()
    try:
        yield
    finally:
        with uninterrupted():
            if not ray.is_initialized() or watch.lost():  # nobody there would answer
                kill_all_of(folder)
            with suppress(Exception):
                ray.shutdown()
            kill_all_of(folder)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """What Ray does on systems whose firewalls ask about every open port."""
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _own_token() -> Iterator[None]:
    """A token for this cluster alone, unless the user has one in the environment, or wants none."""
    if {TOKEN, f"{TOKEN}_PATH"} & os.environ.keys() or os.environ.get(MODE, "").lower() == "disabled":
        yield
        return
    loader = raylet.AuthenticationTokenLoader.instance()
    os.environ[TOKEN] = secrets.token_hex(32)
    loader.reset_cache()
    try:
        yield
    finally:
        del os.environ[TOKEN]
        loader.reset_cache()


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray prints pages about a raylet that died, which we tell in one sentence."""
    before = private._worker_logs_enabled
    private._worker_logs_enabled = False
    try:
        yield
    finally:
        private._worker_logs_enabled = before
