"""Join a running Ray cluster, or raise an error within seconds."""

import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from actors.cluster.exit_message import explain_exit
from actors.cluster.head import AUTO, CLIENT, check_reachable, token_file
from actors.ray_versions import (
    AuthenticationError,
    current_address,
    defer_sigterm,
    hidden_tips,
    resolve_address,
    started_processes,
)
from fedraa.engine.stop_signals import defer_interrupts
from fedraa.errors import InputError

PACKAGES = ("fedraa", "actors", "schedulers")
# Ray raises errors with these texts if the head node is busy. A second attempt may succeed.
TRANSIENT_ERRORS = ("Starting Ray client server failed", "Initialization failure from server")
# The permission bits of users other than a file's owner.
OTHER_USERS = 0o077

logger = logging.getLogger(__name__)


def join_cluster(address: str) -> None:
    """Join a Ray cluster, and send the code of fedraa from this machine to its nodes.

    Ctrl-C, SIGTERM and SIGHUP take effect after the join, because an interrupted join crashes this process.

    Args:
        address: `auto`, HOST:PORT or ray://HOST:PORT.

    Raises:
        InputError: No cluster answers, it rejects this machine's token, or it has another version of Ray or Python.
    """
    check_reachable(address)
    token = find_open_token()
    if token is not None:
        logger.warning(
            "address: other users of this machine can read the token of the cluster; run: chmod 600 %s", token
        )
    raylet_died = InputError(
        "address", "the raylet of this node died while this process connected to it", hint="start it again"
    )
    for last in (False, True):
        try:
            with defer_interrupts(), defer_sigterm(), hidden_tips(), explain_exit(str(raylet_died)):
                ray.init(
                    address=address, logging_level=logging.ERROR, log_to_driver=False, runtime_env=make_runtime_env()
                )
            # `ray.init` does not set this logger's level.
            logging.getLogger("ray.util.client.logsclient").setLevel(logging.ERROR)
            return
        except (RuntimeError, ConnectionError, AuthenticationError) as error:
            # If `ray.init` failed halfway, `ray.shutdown` can raise any exception.
            with suppress(Exception):
                ray.shutdown()
            if last or not any(text in str(error) for text in TRANSIENT_ERRORS):
                raise _join_error(address, str(error)) from None


def joined_address() -> str | None:
    """Return the address of the cluster that this process has joined; None if this process has started the cluster."""
    if started_processes("gcs_server"):
        return None
    return current_address()


def refuse_other_cluster(address: str) -> None:
    """Raise InputError if this process has joined another cluster than the one with this address."""
    joined = current_address()
    if address in (AUTO, joined):
        return
    if CLIENT in address + joined or resolve_address(address) != resolve_address(joined):
        problem = f"this process has already joined the Ray cluster at {joined}"
        hint = "leave it out, or call ray.shutdown() before the run"
        raise InputError("address", problem, got=address, hint=hint)


def find_open_token() -> Path | None:
    """Return the path of the file with the Ray token if other users can read the file.

    A user with the token could run any code on the cluster.
    """
    path = token_file()
    if "RAY_AUTH_TOKEN" in os.environ or not path.exists():
        return None
    if not path.stat().st_mode & OTHER_USERS:
        return None
    return path


def make_runtime_env() -> dict[str, Any]:
    """Return the runtime environment with which Ray sends the code of fedraa to all nodes.

    It is empty in a submitted job. The nodes of a job already have the code.
    """
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return {}
    return {"py_modules": package_folders()}


def package_folders() -> list[str]:
    """Return the folders of the packages of fedraa."""
    return [str(Path(__file__).parents[2] / package) for package in PACKAGES]


def _join_error(address: str, text: str) -> InputError:
    """Return an InputError for Ray's error `text` about a cluster that cannot be joined."""
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
    if len(versions) == 2:
        remote, local = (f"Ray {ray_version} and Python {python}" for ray_version, python in versions)
        return InputError("address", f"the cluster at {address} has {remote}", expected=f"{local}, as on this machine")
    return InputError("address", f"the cluster at {address} cannot be joined: {' '.join(text.split())}")
