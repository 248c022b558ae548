"""Joins a Ray cluster that is there, or says in one sentence, within seconds, why it cannot."""

import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import ray
from ray import _raylet
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.core.generated import gcs_service_pb2, ray_client_pb2
from ray.exceptions import AuthenticationError

raylet: Any = _raylet  # of these three modules, made by compilers, no types are known
gcs: Any = gcs_service_pb2
client: Any = ray_client_pb2

PACKAGES = ("fedraa", "actors", "schedulers")
CLIENT = "ray://"
ANSWER_SECONDS = 5.0
SLOW = "Starting Ray client server failed"  # a busy head's word for a client's process that took longer than 30 s
OTHERS = 0o077  # what a file lets others than its owner do
# What a head answers to at once, and its port for clients: Ray itself tries for minutes.
GREETINGS: dict[bool, tuple[str, Any]] = {
    False: ("/ray.rpc.NodeInfoGcsService/GetClusterId", gcs.GetClusterIdRequest()),
    True: ("/ray.rpc.RayletDriver/ClusterInfo", client.ClusterInfoRequest(type=client.ClusterInfoType.PING)),
}
TOKEN = (
    "wants the token that `ray get-auth-token` prints on its head node: "
    "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to that token or put it into ~/.ray/auth_token"
)

logger = logging.getLogger(__name__)


def attach(address: str) -> None:
    """Join the cluster at `auto`, HOST:PORT or ray://HOST:PORT; its nodes need not have this code, they are sent it.

    Raises ValueError if there is none, if it wants another token, or is of another version of Ray or Python.
    """
    _greet(address)
    warn_of_open_token()
    for last in (False, True):
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, runtime_env=carried())
            return
        except (RuntimeError, ConnectionError, AuthenticationError) as error:
            with suppress(Exception):
                ray.shutdown()
            if last or SLOW not in str(error):
                raise ValueError(_why_not(address, str(error))) from None


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


def _greet(address: str) -> None:
    """ValueError unless a cluster is there that takes our token."""
    as_client = address.startswith(CLIENT)
    try:
        at = address.removeprefix(CLIENT) if as_client else canonicalize_bootstrap_address_or_die(address)
        header = raylet.AuthenticationTokenLoader.instance().get_token_for_http_header()
    except ConnectionError as error:
        raise ValueError(f"address: got {address!r}, but {_first_line(error).split('. ')[0].lower()}") from None
    except AuthenticationError:
        raise ValueError(f"address: the cluster at {address} {TOKEN}") from None
    method, request = GREETINGS[as_client]
    with grpc.insecure_channel(at, options=(("grpc.enable_http_proxy", 0),)) as channel:
        call = channel.unary_unary(method, request_serializer=type(request).SerializeToString)
        try:
            call(request, timeout=ANSWER_SECONDS, metadata=[(key.lower(), value) for key, value in header.items()])
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise ValueError(f"address: the cluster at {address} {TOKEN}") from None
            raise ValueError(
                f"address: no Ray cluster answers at {address}; start one with: ray start --head"
            ) from None


def _why_not(address: str, text: str) -> str:
    versions = re.findall(r"Ray: (\S+)\s+Python: (\S+)", text)
    if len(versions) == 2:
        theirs, ours = (f"Ray {of_ray} and Python {of_python}" for of_ray, of_python in versions)
        return f"address: the cluster at {address} has {theirs}, but here are {ours}; they must be the same"
    return f"address: cannot attach to {address}: {' '.join(text.split())}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
