"""Nodes of a cluster, started by `ray start` on this machine with a separate token."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from child_processes import end_with_parent
from ray.scripts.scripts import start as start_command
from running import PATIENCE, until

# Ray's default settings are for large clusters, and would delay the tests.
QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 4,
}
# An option of newer versions of Ray.
WITHOUT_LOG_MONITOR = ("--include-log-monitor", "false")
if not any(WITHOUT_LOG_MONITOR[0] in option.opts for option in start_command.params):
    WITHOUT_LOG_MONITOR = ()


@dataclass
class Nodes:
    """A head node without cores, and the nodes that join it."""

    folder: Path
    environment: dict[str, str]
    port: int
    client: int
    dashboard: int
    metrics: int
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, name: str, *flags: str, **environment: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *flags]
        command += ["--dashboard-agent-listen-port", str(free_port()), *WITHOUT_LOG_MONITOR]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                command,
                env=self.environment | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        until(lambda: "Ray runtime started" in (self.folder / f"{name}.log").read_text(), self.started[name])

    def join(self, name: str, resources: dict[str, float], *flags: str, **environment: str) -> None:
        """Start a node with one core."""
        given = (
            "--address",
            self.address,
            "--num-cpus",
            "1",
            "--resources",
            json.dumps(resources),
            "--node-name",
            name,
        )
        self.start(name, *given, *flags, **environment)

    def kill(self, name: str) -> None:
        """Kill all processes of the node at once, like a power failure."""
        process = self.started.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def fedraa(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fedraa", *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a fedraa command in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "fedraa", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=end_with_parent,
        )


def free_port() -> int:
    """Return a free port below those that Ray gives to its workers."""
    while True:
        port = 2000 + secrets.randbelow(7000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


@contextmanager
def nodes(quick: dict[str, int] = QUICK) -> Iterator[Nodes]:
    """Yield a cluster with these settings of Ray. With {}, a node without CPU time for seconds is not declared dead."""
    with TemporaryDirectory(prefix="fr-", dir="/tmp", ignore_cleanup_errors=True) as name:  # sockets' names are short
        token = secrets.token_hex(32)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "HOME": name,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        cluster = Nodes(Path(name), environment, *(free_port() for _ in range(4)))
        head = ("--head", "--num-cpus", "0", "--node-ip-address", "127.0.0.1", "--dashboard-host", "127.0.0.1")
        ports = (
            "--port",
            cluster.port,
            "--ray-client-server-port",
            cluster.client,
            "--dashboard-port",
            cluster.dashboard,
        )
        settings = ("--temp-dir", name, "--system-config", json.dumps(quick))
        cluster.start("head", *head, *map(str, ports), *settings)
        try:
            until(lambda: answers(cluster.client) and answers(cluster.dashboard))
            yield cluster
        finally:
            for node in list(cluster.started):
                cluster.kill(node)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))
