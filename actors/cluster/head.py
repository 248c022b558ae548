"""Checks that the head node of a Ray cluster answers, before and after this process joins the cluster."""

import os
import time
from pathlib import Path
from typing import Any

import grpc

from actors.ray_versions import AuthenticationError, head_request, resolve_address, token_header
from fedraa.errors import InputError

CLIENT = "ray://"
# With this address, Ray looks for a cluster on this machine.
AUTO = "auto"
MAX_PORT = 65535
ANSWER_SECONDS = 5.0
REQUEST_INTERVAL_SECONDS = 2.0
# If this process pauses, the head node only seems silent. At most this time between two checks counts as silence.
MAX_COUNTED_SECONDS = 2.0
# The head node counts as lost after it refused connections for GONE_SECONDS, or was silent for SILENT_SECONDS. Ray
# would end this process later, after 60 s.
GONE_SECONDS = 20.0
SILENT_SECONDS = 45.0


class Head:
    """A connection to the head node of a Ray cluster.

    The constructor raises InputError if the address is invalid or no cluster is found.
    """

    def __init__(self, address: str) -> None:
        _check_form(address)
        self.address = address
        as_client = address.startswith(CLIENT)
        try:
            target = address.removeprefix(CLIENT)
            if not as_client:
                target = resolve_address(address)
            self._header = token_header()
        except ConnectionError:
            problem = "no Ray cluster runs on this machine"
            raise InputError("address", problem, got=address, hint="start one with: ray start --head") from None
        except AuthenticationError:
            raise token_error(address) from None
        method, self._request = head_request(as_client)
        self._channel = grpc.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),))
        self._call = self._channel.unary_unary(method, request_serializer=type(self._request).SerializeToString)

    def ask(self) -> Any:
        """Send a request to the head node, and return a future of its answer."""
        return self._call.future(self._request, timeout=ANSWER_SECONDS, metadata=self._header)

    def close(self) -> None:
        self._channel.close()


def token_file() -> Path:
    """Return the path of the file from which Ray reads the token."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def token_error(address: str) -> InputError:
    """Return the error for a cluster that rejects this machine's token."""
    return InputError(
        "address",
        f"the cluster at {address} requires the token that `ray get-auth-token` prints on its head node: "
        f"set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to that token or put it into {token_file()}",
    )


def check_reachable(address: str) -> None:
    """Raise InputError if no cluster answers at the address, or if the cluster rejects this machine's token."""
    head = Head(address)
    try:
        head.ask().result()
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            raise token_error(address) from None
        raise InputError(
            "address", f"no Ray cluster answers at {address}", hint="start one with: ray start --head"
        ) from None
    finally:
        head.close()


class HeadWatch:
    """A HealthMonitor of the head node of a cluster that this process has joined."""

    def __init__(self, address: str) -> None:
        self._head = Head(address)
        self._silent = 0.0
        self._bound = SILENT_SECONDS
        self._looked = time.monotonic()
        self._send_request(self._looked)

    def lost(self) -> str | None:
        """Return the reason if the head node counts as lost, otherwise None."""
        if self._silent > self._bound:
            return f"the head of the Ray cluster at {self._head.address} does not answer"
        now = time.monotonic()
        self._silent += min(MAX_COUNTED_SECONDS, now - self._looked)
        self._looked = now
        if self._question.done():
            self._bound = SILENT_SECONDS
            if self._question.exception() is None:
                self._silent = 0.0
            elif self._question.code() == grpc.StatusCode.UNAVAILABLE:
                self._bound = GONE_SECONDS
            if now > self._asked + REQUEST_INTERVAL_SECONDS:
                self._send_request(now)
        return None

    def _send_request(self, now: float) -> None:
        self._asked = now
        self._question = self._head.ask()

    def confirm_lost(self) -> str | None:
        """Send a new request to the head node, and wait for its answer or its loss.

        Return the reason if the head node counts as lost, otherwise None.
        """
        self._send_request(time.monotonic())
        lost = self.lost()
        while lost is None and (self._silent or not self._question.done()):
            time.sleep(0.1)
            lost = self.lost()
        return lost


def _check_form(address: str) -> None:
    """Raise InputError if an address is not `auto` and lacks a host or a valid port."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= MAX_PORT
    if address != AUTO and not (host and "/" not in host and is_port):
        raise InputError("address", got=address, expected=f"{AUTO}, HOST:PORT or {CLIENT}HOST:PORT")
