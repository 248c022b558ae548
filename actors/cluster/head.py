"""Whether the head of a Ray cluster is there: asked before it is joined, and again and again afterwards."""

import time
from typing import Any

import grpc
from ray import _raylet
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.core.generated import gcs_service_pb2, ray_client_pb2
from ray.exceptions import AuthenticationError

from fedraa.errors import InputError

raylet: Any = _raylet  # of these three modules, made by compilers, no types are known
gcs: Any = gcs_service_pb2
client: Any = ray_client_pb2

CLIENT = "ray://"
ANSWER_SECONDS = 5.0
ASK_SECONDS = 2.0  # between two questions
GLANCE = 2.0  # seconds between two looks that count at most: who is not looked at has no time to answer
# For so long a head may refuse to answer, or be too busy; after 60 s Ray ends who has joined it, with its own words.
GONE_SECONDS, SILENT_SECONDS = 20.0, 45.0
# What a head answers to at once, and its port for clients: Ray itself tries for minutes.
GREETINGS: dict[bool, tuple[str, Any]] = {
    False: ("/ray.rpc.NodeInfoGcsService/GetClusterId", gcs.GetClusterIdRequest()),
    True: ("/ray.rpc.RayletDriver/ClusterInfo", client.ClusterInfoRequest(type=client.ClusterInfoType.PING)),
}
TOKEN = (
    "wants the token that `ray get-auth-token` prints on its head node: "
    "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to that token or put it into ~/.ray/auth_token"
)


class Head:
    """The head of the cluster at an address; InputError if the address cannot be one."""

    def __init__(self, address: str) -> None:
        self.address = address
        as_client = address.startswith(CLIENT)
        try:
            at = address.removeprefix(CLIENT) if as_client else canonicalize_bootstrap_address_or_die(address)
            header = raylet.AuthenticationTokenLoader.instance().get_token_for_http_header()
        except ConnectionError as error:
            raise InputError("address", _first_line(error).split(". ")[0].lower(), got=address) from None
        except AuthenticationError:
            raise InputError("address", f"the cluster at {address} {TOKEN}") from None
        self._header = [(key.lower(), value) for key, value in header.items()]
        method, self._request = GREETINGS[as_client]
        self._channel = grpc.insecure_channel(at, options=(("grpc.enable_http_proxy", 0),))
        self._call = self._channel.unary_unary(method, request_serializer=type(self._request).SerializeToString)

    def ask(self) -> Any:
        """Send a greeting and return the future of its answer."""
        return self._call.future(self._request, timeout=ANSWER_SECONDS, metadata=self._header)

    def close(self) -> None:
        self._channel.close()


def greet(address: str) -> None:
    """Raise InputError unless a cluster answers that accepts the token of this machine."""
    head = Head(address)
    try:
        head.ask().result()
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            raise InputError("address", f"the cluster at {address} {TOKEN}") from None
        raise InputError(
            "address", f"no Ray cluster answers at {address}", hint="start one with: ray start --head"
        ) from None
    finally:
        head.close()


class HeadWatch:
    """Looks after the head of a cluster that we have joined; to be asked again and again."""

    def __init__(self, address: str) -> None:
        self._head = Head(address)
        self._silent, self._looked, self._bound = 0.0, time.monotonic(), SILENT_SECONDS
        self._asked, self._question = self._looked, self._head.ask()

    def lost(self) -> str | None:
        """What has happened to it, for good."""
        if self._silent > self._bound:
            return f"the head of the Ray cluster at {self._head.address} gives no answer"
        now = time.monotonic()
        self._silent += min(GLANCE, now - self._looked)
        self._looked = now
        if self._question.done():
            if (error := self._question.exception()) is None:
                self._silent = 0.0
            refused = error is not None and self._question.code() == grpc.StatusCode.UNAVAILABLE
            self._bound = GONE_SECONDS if refused else SILENT_SECONDS
            if now > self._asked + ASK_SECONDS:
                self._asked, self._question = now, self._head.ask()
        return None

    def made_sure(self) -> str | None:
        """The same, once a question that is put now has had its time: for who has seen something else go wrong."""
        self._asked, self._question = time.monotonic(), self._head.ask()
        while (lost := self.lost()) is None and (self._silent or not self._question.done()):
            time.sleep(0.1)
        return lost


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
