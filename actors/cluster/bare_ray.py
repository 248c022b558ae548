"""Ray with nothing but what a run needs: the GCS, a raylet, and the processes of actors.

Autoscaler, dashboard, log monitor and the two agents beside a raylet take four CPU seconds to start, most of them
before the first actor can, and serve nobody in a cluster of our own: it does not grow, one driver looks at it, and its
processes have no environments of their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ray import _raylet
from ray._private import node, ray_constants, services

raylet: Any = _raylet  # made by a compiler, of which no types are known
NONE = -1  # the port of a service that there is not
STAND_IN = "cat"  # a raylet wants its agents to live: this one does nothing, and ends when the raylet does
AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
PORTS = (
    raylet.METRICS_AGENT_PORT_NAME,
    raylet.METRICS_EXPORT_PORT_NAME,
    raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
    raylet.RUNTIME_ENV_AGENT_PORT_NAME,
)


@contextmanager
def bare_ray() -> Iterator[None]:
    """Ray that is started within has no other processes."""
    with ExitStack() as stack:
        for attendant in ("start_monitor", "start_log_monitor", "start_api_server"):
            stack.enter_context(_replaced(node.Node, attendant, _nothing))
        stack.enter_context(_replaced(services, "start_ray_process", _without_agents(services.start_ray_process)))
        yield


def _nothing(of: Any, **options: Any) -> None:
    """In place of a start."""


def _without_agents(start: Any) -> Any:
    """The function that starts one of Ray's processes; a raylet then finds its agents' ports, and starts stand-ins."""

    def started(command: Sequence[str], process_type: str, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            flags = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
            for port in PORTS:
                raylet.persist_port(flags["--session_dir"], flags["--node_id"], port, NONE)
            command = [f"{flag}={STAND_IN}" if (flag := word.partition("=")[0]) in AGENTS else word for word in command]
        return start(command, process_type, **options)

    return started


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
