"""The checks of `compat`: the same small run in a virtual environment, in every way in which fedraa starts Ray."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from benchmarks.system.processes import list_descendants, process_title
from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event
from fedraa.rundir.file_names import EVENTS, SUMMARY

ROOT = Path(__file__).parents[2]
UPDATES = 40
RUN = ("run", "--clients", "10", "--updates", str(UPDATES), "--local-steps", "3", "--hidden", "16")
ON_RAY = (*RUN, "--workers", "2")
WORKER_DIES_AT, RUN_DIES_AT = 10, 30
TIMEOUT_S = 600.0
POLL_INTERVAL_S = 0.5
# Python's line about a warning, such as "FILE:12: FutureWarning: TEXT".
WARNING = re.compile(r"^.*\b\w+Warning: .*$", re.MULTILINE)
# The address of the head in the output of `ray start`.
ADDRESS = re.compile(r"--address='(\S+)'")
# Flower averages the weights of two clients in one round, on a new Ray. Without "local" it would join any cluster that
# runs on this machine.
FLOWER = """
from flwr.app import ArrayRecord, MetricRecord, RecordDict, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
import numpy as np

client, server, seen = ClientApp(), ServerApp(), []

@client.train()
def train(message, context):
    weights = [array + 1 for array in message.content["arrays"].to_numpy_ndarrays()]
    content = {"arrays": ArrayRecord(weights), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)

@server.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=2)
    start = ArrayRecord([np.zeros(3)])
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=1)
    seen.extend(result.arrays.to_numpy_ndarrays())

ray_options = {"address": "local", "include_dashboard": False, "num_cpus": 2}
run_simulation(
    server_app=server, client_app=client, num_supernodes=2, backend_config={"init_args": ray_options}
)
assert seen[0].tolist() == [1, 1, 1], seen
"""


class CheckFailed(Exception):
    """The reason why a check failed, in one line."""


class KillWorkerThenRun(Callback):
    """A callback that kills a worker process at one commit, and the process of the run at a later one."""

    def __init__(self) -> None:
        self.commits = 0

    def on_commit(self, event: Event) -> None:
        self.commits += 1
        if self.commits == WORKER_DIES_AT:
            workers = [
                process for process in list_descendants(os.getpid()) if process_title(process).startswith("ray::Worker")
            ]
            os.kill(workers[0], signal.SIGKILL)
        if self.commits == RUN_DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Environment:
    """A virtual environment with fedraa, and a folder for its runs."""

    folder: Path
    python: Path

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of the checks' processes, with a token for the cluster that they start."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "PYTHON"))}
        return inherited | {
            "OMP_NUM_THREADS": "1",
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }

    def execute(self, *arguments: str, variables: dict[str, str] | None = None, exit_code: int = 0) -> str:
        """Run Python with these arguments, and return its output.

        Args:
            arguments: The arguments of Python.
            variables: The environment variables, if they are those of a running cluster.
            exit_code: The exit code that is right.

        Raises CheckFailed if it ends with another exit code, or prints a warning.
        """
        try:
            ended = subprocess.run(
                [str(self.python), *arguments],
                cwd=self.folder,
                env=variables or self.variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise CheckFailed(f"it did not end within {TIMEOUT_S:g} s") from None
        if ended.returncode != exit_code:
            raise CheckFailed(f"exit code {ended.returncode}: {_last_line(ended.stdout)}")
        warning = WARNING.search(ended.stdout)
        if warning is not None:
            raise CheckFailed(warning[0].strip())
        return ended.stdout

    def read_digest(self, run: str) -> str:
        """Return the digest of the model of a run."""
        return str(json.loads((self.folder / run / SUMMARY).read_text())["model_sha256"])


@dataclass(frozen=True)
class Head:
    """A Ray cluster of one node that listens on loopback.

    Attributes:
        address: HOST:PORT of the cluster.
        client: Its address for clients, which begins with ray://.
        dashboard: The URL of its dashboard.
        variables: The environment variables of processes that join it.
    """

    address: str
    client: str
    dashboard: str
    variables: dict[str, str]


def import_quietly(environment: Environment) -> None:
    """Import fedraa, with every warning as an error."""
    environment.execute("-W", "error", "-c", "import fedraa")


def run_local(environment: Environment) -> str:
    """Run on the engine `local`, and return the digest."""
    environment.execute("-m", "fedraa", *RUN, "--engine", "local", "--out", "local")
    return environment.read_digest("local")


def run_cluster(environment: Environment) -> str:
    """Run on the built-in cluster, and return the digest."""
    environment.execute("-m", "fedraa", *ON_RAY, "--out", "cluster")
    return environment.read_digest("cluster")


def resume_killed(environment: Environment) -> str:
    """Kill a worker and then the run, resume it, and return the digest."""
    kill = f"{KillWorkerThenRun.__module__}:{KillWorkerThenRun.__name__}"
    flags = ("--checkpoint-every", "1", "--callbacks", kill, "--out", "killed")
    # The environment has no benchmarks, and the callback is here.
    variables = environment.variables | {"PYTHONPATH": str(ROOT)}
    environment.execute("-m", "fedraa", *ON_RAY, *flags, variables=variables, exit_code=-signal.SIGKILL)
    if '"fault"' not in (environment.folder / "killed" / EVENTS).read_text():
        raise CheckFailed("the log has no fault, although a worker was killed")
    environment.execute("-m", "fedraa", "resume", "killed")
    return environment.read_digest("killed")


def run_attached(environment: Environment, head: Head) -> str:
    """Run on a cluster that `ray start` has started, and return the digest."""
    command = (*ON_RAY, "--address", head.address, "--out", "address")
    environment.execute("-m", "fedraa", *command, variables=head.variables)
    return environment.read_digest("address")


def run_job(environment: Environment, head: Head) -> str:
    """Submit the run to this cluster as a job, and return the digest."""
    command = (*ON_RAY, "--out", str(environment.folder / "job"))
    environment.execute("-m", "fedraa", "submit", "--address", head.dashboard, "--", *command, variables=head.variables)
    return environment.read_digest("job")


def run_shards(environment: Environment, head: Head) -> str:
    """Run with a server of two shards on this cluster, and return the digest."""
    command = (*ON_RAY, "--server-shards", "2", "--address", head.address, "--out", "shards")
    environment.execute("-m", "fedraa", *command, variables=head.variables)
    return environment.read_digest("shards")


def run_flower(environment: Environment) -> None:
    """Run a simulation of Flower."""
    environment.execute("-W", "ignore", "-c", FLOWER)


# The columns of the table. The second group needs a cluster that `ray start` has started.
ALONE: dict[str, Callable[[Environment], str | None]] = {
    "import": import_quietly,
    "local": run_local,
    "cluster": run_cluster,
    "resume": resume_killed,
}
ON_HEAD: dict[str, Callable[[Environment, Head], str]] = {
    "address": run_attached,
    "submit": run_job,
    "shards": run_shards,
}
FLOWER_COLUMN = "flower"
CHECKS = (*ALONE, *ON_HEAD, FLOWER_COLUMN)


@contextmanager
def start_head(environment: Environment, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[Head]:
    """Start a cluster with `ray start --head`. Raises CheckFailed if it does not start.

    Args:
        environment: The environment of the cluster.
        variables: Further environment variables of the cluster and of the processes that join it.
    """
    port, client, dashboard, agent = _free_ports(4)
    command = [str(environment.python), "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--num-cpus", "2", "--node-ip-address", "127.0.0.1", "--port", str(port)]
    command += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)]
    command += ["--ray-client-server-port", str(client), "--dashboard-agent-listen-port", str(agent)]
    # The path is short, because the paths of sockets are limited to about 100 characters.
    with TemporaryDirectory(prefix="fr-", dir="/tmp", ignore_cleanup_errors=True) as name:
        log = Path(name) / "head.log"
        # Since Ray 2.48, the dashboard ends if one of its processes does not start within 30 s, as on a busy machine.
        waits = {"RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": f"{TIMEOUT_S:g}"}
        variables = {**environment.variables, **waits, **variables}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--disable-usage-stats", "--temp-dir", name],
                env=variables,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            _await_start(process, log, dashboard)
            # Ray 2.55 replaces loopback by another address of the machine.
            address = ADDRESS.search(log.read_text())
            assert address is not None, log.read_text()
            yield Head(address[1], f"ray://127.0.0.1:{client}", f"http://127.0.0.1:{dashboard}", variables)
        finally:
            descendants = list_descendants(process.pid)
            for target in (process.pid, *descendants):
                with suppress(ProcessLookupError):
                    os.kill(target, signal.SIGKILL)
            process.wait()


def _await_start(process: "subprocess.Popen[bytes]", log: Path, dashboard: int) -> None:
    """Wait until the cluster has started and its dashboard listens. Raises CheckFailed if it does not start."""
    deadline = time.monotonic() + TIMEOUT_S
    while "Ray runtime started" not in log.read_text() or not _is_listening(dashboard):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CheckFailed(f"ray start: {_last_line(log.read_text())}")
        time.sleep(POLL_INTERVAL_S)


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for probe in sockets:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in sockets]
    for probe in sockets:
        probe.close()
    return ports


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
