"""A Ray cluster reduced to the processes that a run needs: the GCS, a raylet and the actors' processes.

Ray's autoscaler, dashboard, log monitor and the two agents beside a raylet take four CPU seconds to start, mostly
before the first actor can start. A private cluster has no use for them: it does not grow, only one driver uses it, and
its processes need no separate environments.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ray import _raylet
from ray._private import node, ray_constants, services

# An extension module without type information.
raylet: Any = _raylet
# The port number of a service that does not run.
NO_PORT = -1
# A raylet requires living agents. This command does nothing and ends when the raylet closes its input.
STAND_IN = "cat"
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
PORTS = (
    raylet.METRICS_AGENT_PORT_NAME,
    raylet.METRICS_EXPORT_PORT_NAME,
    raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
    raylet.RUNTIME_ENV_AGENT_PORT_NAME,
)


@contextmanager
def minimal_ray() -> Iterator[None]:
    """Start Ray without its optional processes while the context is active."""
    with ExitStack() as stack:
        for attendant in ("start_monitor", "start_log_monitor", "start_api_server"):
            stack.enter_context(_replaced(node.Node, attendant, _nothing))
        stack.enter_context(_replaced(services, "start_ray_process", _without_agents(services.start_ray_process)))
        yield


def _nothing(of: Any, **options: Any) -> None:
    """Replace the start of an optional process and do nothing."""


def _without_agents(start: Any) -> Any:
    """Return a replacement for the function that starts Ray's processes.

    For a raylet it writes the ports that the raylet expects from its agents and starts stand-ins for the agents.
    """

    def started(command: Sequence[str], process_type: str, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            flags = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
            for port in PORTS:
                raylet.persist_port(flags["--session_dir"], flags["--node_id"], port, NO_PORT)
            command = [_with_stand_in(word) for word in command]
        return start(command, process_type, **options)

    return started


def _with_stand_in(word: str) -> str:
    """Return an argument of a raylet; the command of an agent is replaced."""
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
