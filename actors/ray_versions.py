"""The only module that uses private names of Ray, or that depends on Ray's version. It supports 2.40 to 2.60.

Ray has no public way to listen on loopback only, to start fewer processes, to check its own processes, or to check the
address and the token of a cluster before a process joins it. Tokens exist since Ray 2.52.
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

# These modules have no type information.
_core: Any = _raylet
_gcs: Any = gcs_service_pb2
_client: Any = ray_client_pb2
_process: Any = worker
_packaging: Any = packaging
_actor: Any = actor

MAX_JOB_BYTES: int = packaging.GCS_STORAGE_MAX_SIZE
# The port number of a service that does not run.
NO_PORT = -1
# A raylet requires living agents. This command does nothing and ends when the raylet closes its input.
STAND_IN = "cat"
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
OPTIONAL_PROCESSES = ("start_monitor", "start_log_monitor", "start_api_server")
# Early versions of Ray have another name for this function.
FIND_MISSING_LIBRARIES = "get_dashboard_dependency_error"
# The name of an option of actors.
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
    # Ray before 2.51 cannot subscript this class.
    AnyRef = ray.ObjectRef


class _NoAuthenticationError(Exception):
    """The stand-in for an error that Ray before 2.52 cannot raise."""


AuthenticationError: type[Exception] = getattr(ray.exceptions, "AuthenticationError", _NoAuthenticationError)


def reset_token() -> None:
    """Let Ray read the token from the environment again. Ray before 2.52 has no tokens."""
    if hasattr(_core, "AuthenticationTokenLoader"):
        _core.AuthenticationTokenLoader.instance().reset_cache()


def token_header() -> list[tuple[str, str]]:
    """Return the metadata that carry this machine's token in a request. Ray before 2.52 has no tokens.

    Raises AuthenticationError if a token is required, and there is none.
    """
    if not hasattr(_core, "AuthenticationTokenLoader"):
        return []
    header = _core.AuthenticationTokenLoader.instance().get_token_for_http_header()
    return [(key.lower(), value) for key, value in header.items()]


def resolve_address(address: str) -> str:
    """Return HOST:PORT for `auto` or an address. Raises ConnectionError if `auto` finds no cluster."""
    resolved: str = services.canonicalize_bootstrap_address_or_die(address)
    return resolved


def head_request(as_client: bool) -> tuple[str, Any]:
    """Return the method and message that a head, or its port for clients, answers at once.

    Ray's own attempt to connect takes minutes.
    """
    if as_client:
        message = _client.ClusterInfoRequest(type=_client.ClusterInfoType.PING)
        return "/ray.rpc.RayletDriver/ClusterInfo", message
    return "/ray.rpc.NodeInfoGcsService/GetClusterId", _gcs.GetClusterIdRequest()


def any_order_option() -> dict[str, bool]:
    """Return the option of an actor that makes its calls as they arrive. Early versions of Ray have no such option.

    Otherwise the calls after a lost one wait for 30 s, although Ray repeats the lost one at once.
    """
    if ANY_ORDER in _actor.ray_option_utils.actor_options:
        return {ANY_ORDER: True}
    return {}


def session_folder() -> Path | None:
    """Return the temporary folder of the cluster whose processes this process started, None if it started none."""
    started = _process._global_node
    return None if started is None else Path(started.get_temp_dir_path())


def started_processes(kind: str) -> list[Any]:
    """Return the processes of a kind (`raylet`, `gcs_server`) that this process started, as subprocess.Popen."""
    started = _process._global_node
    infos = () if started is None else started.all_processes.get(kind, ())
    return [info.process for info in infos]


def visit_files(folder: Path, visit: Callable[[Path], None]) -> None:
    """Call `visit` with every path that a job with this working folder would receive."""
    options: dict[str, bool] = {}
    # Ray 2.51 has no such option and always leaves out the files that .gitignore names; Ray 2.55 has it.
    if "include_gitignore" in inspect.signature(packaging._dir_travel).parameters:
        options["include_gitignore"] = True
    _packaging._dir_travel(folder, [], visit, **options)


@contextmanager
def hidden_worker_logs() -> Iterator[None]:
    """Hide Ray's output about dead raylets and repeated calls. fedraa reports what matters in one sentence."""
    with _replaced(_process, "_worker_logs_enabled", False):
        yield


@contextmanager
def hidden_tips() -> Iterator[None]:
    """Hide a tip that Ray 2.51 and 2.55 print at every start. Ray 2.60 has no such tip."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
        yield


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let Ray listen on loopback, as it does on systems with a firewall that prompts for every open port."""
    with _replaced(ray_constants, "ENABLE_RAY_CLUSTER", False):
        yield


@contextmanager
def minimal_ray() -> Iterator[None]:
    """Start Ray with only the processes that a run needs: the GCS, a raylet and the actors' processes.

    Ray's autoscaler, dashboard, log monitor and the two agents beside a raylet take four CPU seconds to start, mostly
    before the first actor can start. A private cluster has no use for them: it does not grow, only one driver uses it,
    and its processes need no separate environments.
    """
    with ExitStack() as stack:
        for name in OPTIONAL_PROCESSES:
            stack.enter_context(_replaced(node.Node, name, _start_nothing))
        # Ray looks for the libraries of the dashboard by importing them, which would delay the start of the raylet.
        if hasattr(utils, FIND_MISSING_LIBRARIES):
            stack.enter_context(_replaced(utils, FIND_MISSING_LIBRARIES, _find_nothing_missing))
        stack.enter_context(_replaced(services, "start_ray_process", _without_agents(services.start_ray_process)))
        yield


def _start_nothing(of: Any, **options: Any) -> None:
    """Replace the start of an optional process and do nothing."""


def _find_nothing_missing() -> None:
    """Replace the search for missing libraries of Ray's dashboard, which the reduced cluster does not start."""


def _without_agents(start: Any) -> Any:
    """Return a replacement for the function that starts Ray's processes.

    For a raylet it writes the ports that the raylet expects from its agents and starts stand-ins for the agents.
    """
    # Before Ray 2.54, raylets get the ports of agents as arguments, and die or complain without the agents.
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
    """Return an argument of a raylet. If the argument is the command of an agent, return a stand-in."""
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
