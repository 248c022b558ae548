"""The checks of `python -m benchmarks compat`: one small run for each way to use Ray."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from benchmarks.system.processes import list_descendants, process_title, start_tree
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
# Matches a Python warning, such as "FILE:12: FutureWarning: TEXT".
WARNING = re.compile(r"^.*\b\w+Warning: .*$", re.MULTILINE)
# Matches the address in the output of `ray start`.
ADDRESS = re.compile(r"--address='(\S+)'")
# A script in which Flower averages the weights of two clients in one round. Without the address "local", Flower would
# join any Ray cluster that runs on this machine.
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
    """The error of a failed check. Its message gives the reason in one line."""


class KillWorkerThenRun(Callback):
    """A callback that counts server steps (commits). It kills a worker at one step, and the run at a later step."""

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
    """A virtual environment with fedraa, and a folder for the runs of the checks."""

    folder: Path
    python: Path

    @property
    def variables(self) -> dict[str, str]:
        """Return environment variables for the checks, with a token for their clusters."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "PYTHON"))}
        return inherited | {
            "OMP_NUM_THREADS": "1",
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }

    def execute(self, *arguments: str, variables: dict[str, str] | None = None, exit_code: int = 0) -> str:
        """Run Python in the virtual environment, and return the printed text.

        Args:
            arguments: The arguments of Python.
            variables: Environment variables of a running cluster to join; None for no cluster.
            exit_code: The expected exit code.

        Raises CheckFailed if Python ends with a different exit code or prints a warning.
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
        return str(json.loads((self.folder / run / SUMMARY).read_text())["model_sha256"])


@dataclass(frozen=True)
class Head:
    """A Ray cluster with one node, which listens on loopback.

    Attributes:
        address: HOST:PORT of the cluster.
        client: The cluster's address that begins with ray://.
        dashboard: The URL of the dashboard.
        variables: Environment variables for processes that join the cluster.
    """

    address: str
    client: str
    dashboard: str
    variables: dict[str, str]


def import_quietly(environment: Environment) -> None:
    """Import fedraa in a process in which every warning is an error."""
    environment.execute("-W", "error", "-c", "import fedraa")


def run_local(environment: Environment) -> str:
    """Execute the run with the engine `local`, and return its model's digest."""
    environment.execute("-m", "fedraa", *RUN, "--engine", "local", "--out", "local")
    return environment.read_digest("local")


def run_cluster(environment: Environment) -> str:
    """Execute the run on a private cluster, and return its model's digest."""
    environment.execute("-m", "fedraa", *ON_RAY, "--out", "cluster")
    return environment.read_digest("cluster")


def resume_killed(environment: Environment) -> str:
    """Kill a worker and then the run, resume the run, and return its model's digest."""
    kill = f"{KillWorkerThenRun.__module__}:{KillWorkerThenRun.__name__}"
    flags = ("--checkpoint-every", "1", "--callbacks", kill, "--out", "killed")
    # PYTHONPATH adds the package `benchmarks`, which defines the callback of the run and is not installed.
    variables = environment.variables | {"PYTHONPATH": str(ROOT)}
    environment.execute("-m", "fedraa", *ON_RAY, *flags, variables=variables, exit_code=-signal.SIGKILL)
    if '"fault"' not in (environment.folder / "killed" / EVENTS).read_text():
        raise CheckFailed("the log has no fault, although a worker was killed")
    environment.execute("-m", "fedraa", "resume", "killed")
    return environment.read_digest("killed")


def run_attached(environment: Environment, head: Head) -> str:
    """Execute the run on a cluster of `ray start`, and return its model's digest."""
    command = (*ON_RAY, "--address", head.address, "--out", "address")
    environment.execute("-m", "fedraa", *command, variables=head.variables)
    return environment.read_digest("address")


def run_job(environment: Environment, head: Head) -> str:
    """Submit the run to a cluster as a job, and return its model's digest."""
    command = (*ON_RAY, "--out", str(environment.folder / "job"))
    environment.execute("-m", "fedraa", "submit", "--address", head.dashboard, "--", *command, variables=head.variables)
    return environment.read_digest("job")


def run_shards(environment: Environment, head: Head) -> str:
    """Execute the run with two server shards, and return its model's digest."""
    command = (*ON_RAY, "--server-shards", "2", "--address", head.address, "--out", "shards")
    environment.execute("-m", "fedraa", *command, variables=head.variables)
    return environment.read_digest("shards")


def run_flower(environment: Environment) -> None:
    """Check that Flower can run a small simulation with the package versions that fedraa uses."""
    environment.execute("-W", "ignore", "-c", FLOWER)


# Each key is a column of the table, and the value is the check of this column. The checks in ON_HEAD need a cluster
# that `ray start` started.
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
    """Start a cluster with `ray start --head` for the `with` block.

    Args:
        environment: The environment of the cluster.
        variables: Further environment variables of the cluster and of processes that join it.

    Raises CheckFailed if the cluster does not start.
    """
    port, client, dashboard, agent = free_ports(4)
    command = [str(environment.python), "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--num-cpus", "2", "--node-ip-address", "127.0.0.1", "--port", str(port)]
    command += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)]
    command += ["--ray-client-server-port", str(client), "--dashboard-agent-listen-port", str(agent)]
    # The path of a Unix socket can have only about 100 characters, so the folder has a short path.
    with TemporaryDirectory(prefix="fr-", dir="/tmp", ignore_cleanup_errors=True) as name:
        log = Path(name) / "head.log"
        # Since Ray 2.48, the dashboard's process must start within 30 s. A busy machine needs longer.
        waits = {"RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": f"{TIMEOUT_S:g}"}
        variables = {**environment.variables, **waits, **variables}
        command += ["--disable-usage-stats", "--temp-dir", name]
        with (
            log.open("wb") as file,
            start_tree(command, env=variables, stdout=file, stderr=file, start_new_session=True) as process,
        ):
            _await_start(process, log, dashboard)
            # The address comes from the log, because Ray 2.55 may use another address than loopback.
            address = ADDRESS.search(log.read_text())
            assert address is not None, log.read_text()
            yield Head(address[1], f"ray://127.0.0.1:{client}", f"http://127.0.0.1:{dashboard}", variables)


def _await_start(process: "subprocess.Popen[bytes]", log: Path, dashboard: int) -> None:
    """Wait until a cluster and its dashboard have started.

    Raises CheckFailed if the cluster does not start.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while "Ray runtime started" not in log.read_text() or not _is_listening(dashboard):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CheckFailed(f"ray start: {_last_line(log.read_text())}")
        time.sleep(POLL_INTERVAL_S)


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> list[int]:
    """Return free ports of this host."""
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
