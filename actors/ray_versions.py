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

# These modules of Ray have no type hints.
_core: Any = _raylet
_gcs: Any = gcs_service_pb2
_client: Any = ray_client_pb2
_process: Any = worker
_packaging: Any = packaging
_actor: Any = actor

MAX_JOB_BYTES: int = packaging.GCS_STORAGE_MAX_SIZE
# A raylet accepts this number in place of the port of a service that does not run.
NO_PORT = -1
# A raylet ends if its agents (helper processes) are not alive. This command is started in their place: it does nothing,
# and ends when the raylet closes its input.
STAND_IN = "cat"
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
OPTIONAL_PROCESSES = ("start_monitor", "start_log_monitor", "start_api_server")
# The name of the function with which current versions of Ray look for the libraries of the dashboard.
FIND_MISSING_LIBRARIES = "get_dashboard_dependency_error"
# The name of an option of actors, which the first supported versions of Ray do not have.
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
    # The type of references is not ObjectRef[Any], because before Ray 2.51 this class cannot be subscripted.
    AnyRef = ray.ObjectRef


class _NoAuthenticationError(Exception):
    """A replacement for the class AuthenticationError, which Ray before 2.52 does not have."""


AuthenticationError: type[Exception] = getattr(ray.exceptions, "AuthenticationError", _NoAuthenticationError)


def reset_token() -> None:
    """Make Ray read the token from the environment again. Ray before 2.52 has no tokens."""
    if hasattr(_core, "AuthenticationTokenLoader"):
        _core.AuthenticationTokenLoader.instance().reset_cache()


def token_header() -> list[tuple[str, str]]:
    """Return the metadata of a gRPC request with this machine's token. The list is empty before Ray 2.52.

    Raises AuthenticationError if a token is required but missing.
    """
    if not hasattr(_core, "AuthenticationTokenLoader"):
        return []
    header = _core.AuthenticationTokenLoader.instance().get_token_for_http_header()
    return [(key.lower(), value) for key, value in header.items()]


def resolve_address(address: str) -> str:
    """Convert a cluster's address to HOST:PORT. Raise ConnectionError if it is `auto` and no cluster runs here."""
    resolved: str = services.canonicalize_bootstrap_address_or_die(address)
    return resolved


def head_request(as_client: bool) -> tuple[str, Any]:
    """Return the gRPC method and the message of a request that the head node of a cluster answers immediately.

    With this request, an unreachable cluster is detected in seconds. Ray's own attempt to connect would take minutes.

    Args:
        as_client: True if the request goes to the port for `ray://` addresses, False if it goes to the port of the GCS.
    """
    if as_client:
        message = _client.ClusterInfoRequest(type=_client.ClusterInfoType.PING)
        return "/ray.rpc.RayletDriver/ClusterInfo", message
    return "/ray.rpc.NodeInfoGcsService/GetClusterId", _gcs.GetClusterIdRequest()


def any_order_option() -> dict[str, bool]:
    """Return the option with which an actor executes calls in the order of their arrival.

    Without the option, an actor that misses a lost call delays later calls for 30 s, although Ray repeats the lost call
    immediately. The result is empty for versions of Ray that do not have the option.
    """
    if ANY_ORDER in _actor.ray_option_utils.actor_options:
        return {ANY_ORDER: True}
    return {}


def session_folder() -> Path | None:
    """Return the temporary folder of the cluster that this process has started, or None if it has started none."""
    started = _process._global_node
    return None if started is None else Path(started.get_temp_dir_path())


def started_processes(kind: str) -> list[Any]:
    """Return the Popen objects of processes of one kind, `raylet` or `gcs_server`, that this process has started."""
    started = _process._global_node
    infos = () if started is None else started.all_processes.get(kind, ())
    return [info.process for info in infos]


def visit_files(folder: Path, visit: Callable[[Path], None]) -> None:
    """Call a function with every path that Ray would send to the cluster for a job with this working folder."""
    options: dict[str, bool] = {}
    # Ray 2.51 does not have the option `include_gitignore`, and always omits the files that .gitignore names.
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
    """Suppress a usage hint that Ray 2.51 and 2.55 print when they start in the block. Ray 2.60 does not print it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
        yield


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make a Ray cluster that starts in the block listen only on loopback.

    Ray has such a mode for systems with a firewall that asks the user about every open port.
    """
    with _replaced(ray_constants, "ENABLE_RAY_CLUSTER", False):
        yield


@contextmanager
def minimal_ray() -> Iterator[None]:
    """If Ray is started in the block, start only the processes that a run needs: the GCS, a raylet and actors.

    Ray's other processes (autoscaler, dashboard, log monitor and two agents of each raylet) take four CPU seconds to
    start, and delay the first actor. A private cluster does not need them: it does not grow, only one driver uses it,
    and its processes need no separate environments.
    """
    with ExitStack() as stack:
        for name in OPTIONAL_PROCESSES:
            stack.enter_context(_replaced(node.Node, name, _start_nothing))
        # Ray imports the libraries of the dashboard to check that they exist. This would delay the start of the raylet.
        if hasattr(utils, FIND_MISSING_LIBRARIES):
            stack.enter_context(_replaced(utils, FIND_MISSING_LIBRARIES, _find_nothing_missing))
        stack.enter_context(_replaced(services, "start_ray_process", _without_agents(services.start_ray_process)))
        yield


def _start_nothing(of: Any, **options: Any) -> None:
    """Do nothing, in place of Ray's function that starts an optional process."""


def _find_nothing_missing() -> None:
    """Report no missing libraries, in place of Ray's check for the dashboard, which is not started."""


def _without_agents(start: Any) -> Any:
    """Return a replacement for Ray's function `start_ray_process`, which is the argument `start`.

    When the replacement starts a raylet, it writes the files in which the raylet expects the ports of its agents. It
    also makes the raylet start the command `STAND_IN`, which does nothing, in place of each agent.
    """
    # Before Ray 2.54, a raylet does not work without its agents, so `start` stays as it is. `persist_port` exists only
    # since Ray 2.54, which shows the version.
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
