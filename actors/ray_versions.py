"""All uses of private names of Ray, and all code that depends on Ray's version (2.40 to 2.60).

Ray has no public way to listen only on loopback, to start fewer processes, to check its own processes, or to check a
cluster's address and token before joining. Tokens exist since Ray 2.52.
"""

import inspect
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
from ray import _raylet, actor
from ray._private import node, ray_constants, services, utils, worker
from ray._private.runtime_env import packaging
from ray.core.generated import gcs_service_pb2, ray_client_pb2
from ray.util import client

# These modules of Ray have no type hints.
_core: Any = _raylet
_gcs: Any = gcs_service_pb2
_client: Any = ray_client_pb2
_process: Any = worker
_packaging: Any = packaging
_actor: Any = actor
_as_client: Any = client

MAX_JOB_BYTES: int = packaging.GCS_STORAGE_MAX_SIZE
# A raylet accepts this port number for a service that does not run.
NO_PORT = -1
# A raylet needs two agents (helper processes). fedraa starts this command instead of an agent. The command waits, and
# ends when the raylet closes its input.
STAND_IN = "cat"
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
OPTIONAL_PROCESSES = ("start_monitor", "start_log_monitor", "start_api_server")
# Current versions of Ray look for the dashboard's libraries with this function.
FIND_MISSING_LIBRARIES = "get_dashboard_dependency_error"
# The first supported versions of Ray do not have this option of actors.
ANY_ORDER = "allow_out_of_order_execution"
# A raylet reads these ports from files, since Ray 2.54.
PORT_NAMES = (
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)


if TYPE_CHECKING:
    AnyRef = ray.ObjectRef[Any]
else:
    # Before Ray 2.51, ObjectRef cannot be subscripted.
    AnyRef = ray.ObjectRef


class _NoAuthenticationError(Exception):
    """A replacement for AuthenticationError, which does not exist before Ray 2.52."""


AuthenticationError: type[Exception] = getattr(ray.exceptions, "AuthenticationError", _NoAuthenticationError)


def reset_token() -> None:
    """Make Ray read the token from the environment again. Does nothing before Ray 2.52."""
    if hasattr(_core, "AuthenticationTokenLoader"):
        _core.AuthenticationTokenLoader.instance().reset_cache()


def token_header() -> list[tuple[str, str]]:
    """Return the gRPC metadata with this machine's token; empty before Ray 2.52.

    Raises AuthenticationError if a required token is missing.
    """
    if not hasattr(_core, "AuthenticationTokenLoader"):
        return []
    header = _core.AuthenticationTokenLoader.instance().get_token_for_http_header()
    return [(key.lower(), value) for key, value in header.items()]


def current_address() -> str:
    """Return the address of the cluster that this process has joined: HOST:PORT, or ray://HOST:PORT of a Ray client."""
    if _as_client.ray.is_connected():
        return f"ray://{_as_client.ray.get_context().client_worker._conn_str}"
    address: str = ray.get_runtime_context().gcs_address
    return address


def resolve_address(address: str) -> str:
    """Convert a cluster's address to HOST:PORT.

    Raises ConnectionError if the address is `auto` and no cluster runs here.
    """
    resolved: str = services.canonicalize_bootstrap_address_or_die(address)
    return resolved


def head_request(as_client: bool) -> tuple[str, Any]:
    """Return the method and the message of a gRPC request that the head node of a cluster answers immediately.

    The request shows within seconds if the cluster is reachable. Without it, Ray tries to connect for minutes. It goes
    to the port of `ray://` addresses if `as_client` is True, otherwise to the port of the GCS.
    """
    if as_client:
        message = _client.ClusterInfoRequest(type=_client.ClusterInfoType.PING)
        return "/ray.rpc.RayletDriver/ClusterInfo", message
    return "/ray.rpc.NodeInfoGcsService/GetClusterId", _gcs.GetClusterIdRequest()


def any_order_option() -> dict[str, bool]:
    """Return the option with which an actor executes calls in the order of their arrival.

    Without the option, a lost call delays later calls for 30 s. The result is empty if Ray does not have the option.
    """
    if ANY_ORDER in _actor.ray_option_utils.actor_options:
        return {ANY_ORDER: True}
    return {}


def session_folder() -> Path | None:
    """Return the temporary folder of the cluster that this process has started, or None."""
    started = _process._global_node
    return None if started is None else Path(started.get_temp_dir_path())


def started_processes(kind: str) -> list[Any]:
    """Return the Popen objects of the `raylet` or `gcs_server` processes that this process has started."""
    started = _process._global_node
    infos = () if started is None else started.all_processes.get(kind, ())
    return [info.process for info in infos]


def visit_files(folder: Path, visit: Callable[[Path], None]) -> None:
    """Call `visit` with each path in the folder. Skip the paths that Ray does not upload to a cluster with a job."""
    options: dict[str, bool] = {}
    # Ray 2.51 lacks this option, and always omits the files that .gitignore names.
    if "include_gitignore" in inspect.signature(packaging._dir_travel).parameters:
        options["include_gitignore"] = True
    _packaging._dir_travel(folder, [], visit, **options)


@contextmanager
def hidden_worker_logs() -> Iterator[None]:
    """Hide Ray's output about dead raylets and repeated calls in the block. fedraa reports these failures itself."""
    with _replaced(_process, "_worker_logs_enabled", False):
        yield


@contextmanager
def defer_sigterm() -> Iterator[None]:
    """Defer SIGTERM until Ray has started in the block, and keep this process's handler, which Ray would replace.

    A SIGTERM during the start would crash this process. Without a handler of this process, Ray installs its own.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    arrived = False

    def note_arrival(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        arrived = True

    signal.signal(signal.SIGTERM, note_arrival)
    try:
        with _replaced(utils, "set_sigterm_handler", _install_nothing):
            yield
    finally:
        # This also removes the handler of Ray's C++ code.
        signal.signal(signal.SIGTERM, before)
        if arrived:
            # The handler of Ray's C++ code has set an alarm that would abort this process after three seconds.
            signal.alarm(0)
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def hidden_tips() -> Iterator[None]:
    """Suppress a usage hint that some versions of Ray print when a cluster starts in the block."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
        yield


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let a Ray cluster that starts in the block listen only on loopback.

    Ray has this mode for firewalls that ask the user about every open port.
    """
    with _replaced(ray_constants, "ENABLE_RAY_CLUSTER", False):
        yield


@contextmanager
def minimal_ray() -> Iterator[None]:
    """Let Ray start only the GCS, a raylet and actors in the block.

    The autoscaler, dashboard, log monitor and agents would take four CPU seconds to start. A private cluster does not
    need them.
    """
    with ExitStack() as stack:
        for name in OPTIONAL_PROCESSES:
            stack.enter_context(_replaced(node.Node, name, _start_nothing))
        # Ray's check imports the dashboard's libraries, which delays the raylet.
        if hasattr(utils, FIND_MISSING_LIBRARIES):
            stack.enter_context(_replaced(utils, FIND_MISSING_LIBRARIES, _find_nothing_missing))
        stack.enter_context(_replaced(services, "start_ray_process", _without_agents(services.start_ray_process)))
        yield


def _install_nothing(handler: object) -> None:
    pass


def _start_nothing(of: Any, **options: Any) -> None:
    pass


def _find_nothing_missing() -> None:
    pass


def _without_agents(start: Any) -> Any:
    """Return a variant of Ray's `start_ray_process`. Raylets that it starts run STAND_IN instead of their agents.

    The variant also writes the files from which a raylet reads the ports of its agents.
    """
    # Before Ray 2.54, a raylet does not work without its agents. `persist_port` exists since Ray 2.54.
    if not hasattr(_core, "persist_port"):
        return start

    def start_process(command: Sequence[str], process_type: str, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            flags = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
            for name in PORT_NAMES:
                _core.persist_port(flags["--session_dir"], flags["--node_id"], getattr(_core, name), NO_PORT)
            command = [_replace_agent(word) for word in command]
        return start(command, process_type, **options)

    return start_process


def _replace_agent(word: str) -> str:
    """Return `word`, an argument of a raylet. If it sets the command of an agent, replace this command by STAND_IN."""
    flag = word.partition("=")[0]
    if flag in AGENTS:
        return f"{flag}={STAND_IN}"
    return word


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
