"""The only module that uses private names of Ray or depends on Ray's version. It supports Ray 2.40 to 2.60.

Ray has no public way to listen only on loopback, to start fewer processes, to check its own processes, or to check the
address and the token of a cluster before joining it. Tokens exist since Ray 2.52.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
from ray import _raylet, actor
from ray._private import node, ray_constants, services, utils, worker
from ray._private.runtime_env import packaging
from ray.core.generated import gcs_service_pb2, ray_client_pb2

# These modules have no type hints.
_core: Any = _raylet
_gcs: Any = gcs_service_pb2
_client: Any = ray_client_pb2
_process: Any = worker
_packaging: Any = packaging
_actor: Any = actor

MAX_JOB_BYTES: int = packaging.GCS_STORAGE_MAX_SIZE
# The port number that a raylet accepts for a service that does not run.
NO_PORT = -1
# A raylet ends if its agents (helper processes) are not alive. This command is started in their place: it does nothing,
# and ends when the raylet closes its input.
STAND_IN = "cat"
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
OPTIONAL_PROCESSES = ("start_monitor", "start_log_monitor", "start_api_server")
# The name of Ray's function in current versions. In early versions it has another name.
FIND_MISSING_LIBRARIES = "get_dashboard_dependency_error"
# The name of an option of actors, which early versions do not have.
ANY_ORDER = "allow_out_of_order_execution"
# The names of the ports that a raylet reads from files, since Ray 2.54.
PORT_NAMES = (
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)


if TYPE_CHECKING:
    AnyRef = ray.ObjectRef[Any]
else:
    # In Ray before 2.51, this class cannot be subscripted.
    AnyRef = ray.ObjectRef


class _NoAuthenticationError(Exception):
    """A replacement for the class AuthenticationError, which Ray before 2.52 does not have."""


AuthenticationError: type[Exception] = getattr(ray.exceptions, "AuthenticationError", _NoAuthenticationError)


def reset_token() -> None:
    """Make Ray read the token from the environment again. Ray before 2.52 has no tokens."""
    if hasattr(_core, "AuthenticationTokenLoader"):
        _core.AuthenticationTokenLoader.instance().reset_cache()


def token_header() -> list[tuple[str, str]]:
    """Return the metadata of a request that contain this machine's token. Ray before 2.52 has no tokens.

    Raises AuthenticationError if a token is required but missing.
    """
    if not hasattr(_core, "AuthenticationTokenLoader"):
        return []
    header = _core.AuthenticationTokenLoader.instance().get_token_for_http_header()
    return [(key.lower(), value) for key, value in header.items()]


def resolve_address(address: str) -> str:
    """Return an address as HOST:PORT. Raises ConnectionError if the address is `auto` and there is no cluster."""
    resolved: str = services.canonicalize_bootstrap_address_or_die(address)
    return resolved


def head_request(as_client: bool) -> tuple[str, Any]:
    """Return the gRPC method and the message of a request that a head answers immediately.

    With this request, an unreachable cluster is detected in seconds. Ray's own attempt to connect takes minutes.

    Args:
        as_client: True for the port of Ray clients (ray://), False for the port of the cluster.
    """
    if as_client:
        message = _client.ClusterInfoRequest(type=_client.ClusterInfoType.PING)
        return "/ray.rpc.RayletDriver/ClusterInfo", message
    return "/ray.rpc.NodeInfoGcsService/GetClusterId", _gcs.GetClusterIdRequest()


def any_order_option() -> dict[str, bool]:
    """Return the option with which an actor executes calls in the order of their arrival.

    Without the option, calls after a lost call wait for 30 s, although Ray repeats the lost call immediately. Early
    versions of Ray do not have the option.
    """
    if ANY_ORDER in _actor.ray_option_utils.actor_options:
        return {ANY_ORDER: True}
    return {}


def session_folder() -> Path | None:
    """Return the temporary folder of the cluster that this process has started, or None if it has started none."""
    started = _process._global_node
    return None if started is None else Path(started.get_temp_dir_path())


def started_processes(kind: str) -> list[Any]:
    """Return the processes of a kind (`raylet`, `gcs_server`) that this process has started, as subprocess.Popen."""
    started = _process._global_node
    infos = () if started is None else started.all_processes.get(kind, ())
    return [info.process for info in infos]


def visit_files(folder: Path, visit: Callable[[Path], None]) -> None:
    """Call a function with every path that Ray would send to the cluster for a job with this working folder."""
    options: dict[str, bool] = {}
    # Ray 2.51 does not have this option, and always omits the files that .gitignore names. Ray 2.55 has it.
    if "include_gitignore" in inspect.signature(packaging._dir_travel).parameters:
        options["include_gitignore"] = True
    _packaging._dir_travel(folder, [], visit, **options)


@contextmanager
def hidden_worker_logs() -> Iterator[None]:
    """Hide Ray's output about dead raylets and repeated calls in the block, because fedraa reports such failures."""
    with _replaced(_process, "_worker_logs_enabled", False):
        yield


@contextmanager
def hidden_tips() -> Iterator[None]:
    """Hide a tip during the block that Ray 2.51 and 2.55 print at every start. Ray 2.60 has no such tip."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
        yield


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make Ray listen only on loopback if it is started in the block.

    Ray does the same on systems on which a firewall asks the user about every open port.
    """
    with _replaced(ray_constants, "ENABLE_RAY_CLUSTER", False):
        yield


@contextmanager
def minimal_ray() -> Iterator[None]:
    """If Ray is started in the block, start only the processes that a run needs: the GCS, a raylet and actors.

    The autoscaler, the dashboard, the log monitor and the two agents of a raylet take four CPU seconds to start, mostly
    before the first actor can start. A private cluster does not need them: it does not grow, only one driver uses it,
    and its processes need no separate environments.
    """
    with ExitStack() as stack:
        for name in OPTIONAL_PROCESSES:
            stack.enter_context(_replaced(node.Node, name, _start_nothing))
        # Ray checks the libraries of the dashboard by importing them, which would delay the start of the raylet.
        if hasattr(utils, FIND_MISSING_LIBRARIES):
            stack.enter_context(_replaced(utils, FIND_MISSING_LIBRARIES, _find_nothing_missing))
        stack.enter_context(_replaced(services, "start_ray_process", _without_agents(services.start_ray_process)))
        yield


def _start_nothing(of: Any, **options: Any) -> None:
    """Do nothing, in place of Ray's function that starts an optional process."""


def _find_nothing_missing() -> None:
    """Report no missing libraries, in place of Ray's check for the dashboard, which is not started."""


def _without_agents(start: Any) -> Any:
    """Return a replacement for Ray's function that starts its processes.

    For a raylet, the replacement writes the ports that the raylet expects from its agents, and it makes the raylet
    start a command that does nothing in place of each agent.
    """
    # Before Ray 2.54, a raylet needs its agents, so Ray's function is not replaced.
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
    """Return an argument of a raylet. If it is the command of an agent, return the command `STAND_IN` instead."""
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
