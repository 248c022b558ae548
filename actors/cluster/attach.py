"""Joins a Ray cluster that is there, or says in one sentence, within seconds, why it cannot."""

import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from actors.cluster.head import greet
from fedraa.errors import InputError

PACKAGES = ("fedraa", "actors", "schedulers")
# What a busy head's proxy says of a client's process that took longer than 30 s, and of one that it could not look at.
PASSING = ("Starting Ray client server failed", "Initialization failure from server")
OTHERS = 0o077  # what a file lets others than its owner do

logger = logging.getLogger(__name__)


def attach(address: str) -> None:
    """Join the cluster at `auto`, HOST:PORT or ray://HOST:PORT; its nodes need not have this code, they are sent it.

    Raises ValueError if there is none, if it wants another token, or is of another version of Ray or Python.
    """
    greet(address)
    warn_of_open_token()
    for last in (False, True):
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, runtime_env=carried())
            logging.getLogger("ray.util.client.logsclient").setLevel(logging.ERROR)  # which takes no level from `init`
            return
        except (RuntimeError, ConnectionError, AuthenticationError) as error:
            with suppress(Exception):
                ray.shutdown()
            if last or not any(text in str(error) for text in PASSING):
                raise _why_not(address, str(error)) from None


def warn_of_open_token() -> None:
    """Whoever can read the token can run what they like on the cluster; Ray writes it for all to read."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if "RAY_AUTH_TOKEN" not in os.environ and path.exists() and path.stat().st_mode & OTHERS:
        logger.warning("other users of this machine can read the token of the cluster; run: chmod 600 %s", path)


def carried() -> dict[str, Any]:
    """The runtime environment that brings this code to all nodes; a submitted job has brought its own."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        return {}
    return {"py_modules": packages()}


def packages() -> list[str]:
    """The folders that this code consists of."""
    return [str(Path(__file__).parents[2] / package) for package in PACKAGES]


def _why_not(address: str, text: str) -> InputError:
    """Return the error about a cluster that Ray refused to join with this text."""
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
    if len(versions) == 2:
        theirs, ours = (f"Ray {of_ray} and Python {of_python}" for of_ray, of_python in versions)
        return InputError("address", f"the cluster at {address} has {theirs}", expected=f"{ours}, as on this machine")
    return InputError("address", f"the cluster at {address} cannot be joined: {' '.join(text.split())}")
