"""Test fedraa in runs in which Ray loses or delays messages.

`python -m benchmarks faults` adds one row per run to `benchmarks/results/faults.csv`. A run that ends early prints a
command, with which this benchmark continues it. Ray itself simulates the faults (`RAY_testing_...`) in all processes of
a cluster on loopback. The kinds of clusters:

    plain     a private cluster with two workers
    shards    a private cluster with two workers and two server shards
    follower  a cluster that the driver joins by ray://; the run directory is copied from the server to the driver
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

from rich.console import Console
from rich.table import Table

from benchmarks.system.chaos_table import lost_and_doubled
from benchmarks.system.compat_checks import Environment, start_head
from benchmarks.system.option_checks import refuse_unknown_names
from benchmarks.system.processes import start_tree
from benchmarks.system.rows import add_missing_rows, read_rows
from fedraa.api import run
from fedraa.config.experiment import Experiment
from fedraa.rundir.file_names import SUMMARY
from fedraa.rundir.history import History

RESULTS = Path(__file__).parents[1] / "results" / "faults.csv"
Engine = Literal["plain", "shards", "follower"]
UPDATES = 60
FLAGS = ("--hidden", "8", "--clients", "4", "--local-epochs", "1", "--checkpoint-every", "20", "--quiet")
RESUME = "fedraa resume "
MAX_COMMANDS = 6
TIMEOUT_S = 300.0
PUSH = "CoreWorkerService.grpc_client.PushTask"
ARGUMENTS = "CoreWorkerService.grpc_client.ActorCallArgWaitComplete"
LEASES = (
    "NodeManagerService.grpc_client.RequestWorkerLease",
    "NodeManagerService.grpc_client.ReturnWorkerLease",
    "NodeManagerService.grpc_client.PinObjectIDs",
)

# Only these messages are delayed. A delay of the messages between raylet, GCS and a starting driver would kill the
# raylet.
DELAYED = (
    PUSH,
    "CoreWorkerService.grpc_server.PushTask",
    "CoreWorkerService.grpc_client.GetObjectStatus",
    "CoreWorkerService.grpc_server.GetObjectStatus",
    ARGUMENTS,
    "CoreWorkerService.grpc_server.ActorCallArgWaitComplete",
    "CoreWorkerService.grpc_server.PubsubLongPolling",
    "CoreWorkerService.grpc_server.WaitForActorRefDeleted",
    "NodeManagerService.grpc_client.RequestWorkerLease",
    "NodeManagerService.grpc_server.RequestWorkerLease",
    "NodeManagerService.grpc_server.ReturnWorkerLease",
    "NodeManagerService.grpc_server.PinObjectIDs",
    "ActorInfoGcsService.grpc_server.RegisterActor",
    "ActorInfoGcsService.grpc_server.CreateActor",
    "ActorInfoGcsService.grpc_server.GetActorInfo",
    "InternalPubSubGcsService.grpc_server.GcsSubscriberPoll",
)


def delay_messages(milliseconds: tuple[int, int], *methods: str) -> dict[str, str]:
    """Return environment variables with which Ray delays these remote calls by a random time between two limits."""
    low, high = milliseconds
    return {"RAY_testing_asio_delay_us": ",".join(f"{method}={1000 * low}:{1000 * high}" for method in methods)}


def lose_messages(percent: int, *methods: str) -> dict[str, str]:
    """Return environment variables with which Ray loses a percentage of requests, of answers and of running calls.

    `methods` are the names of the remote calls.
    """
    shares = dict.fromkeys(("req_failure_prob", "resp_failure_prob", "in_flight_failure_prob"), percent)
    calls = {method: {"num_failures": -1, **shares} for method in methods}
    return {
        "RAY_testing_rpc_failure": json.dumps(calls),
        "RAY_testing_rpc_failure_avoid_intra_node_failures": "0",
    }


FAULTS: dict[str, dict[str, str]] = {
    "calls of actors, 1 %": lose_messages(1, PUSH),
    "calls of actors, 5 %": lose_messages(5, PUSH),
    "calls of actors, 10 %": lose_messages(10, PUSH),
    "leases and pins, 20 %": lose_messages(20, *LEASES),
    "notices of arguments, 1 %": lose_messages(1, ARGUMENTS),
    "delays of 1 to 30 ms": delay_messages((1, 30), *DELAYED),
}


@dataclass(frozen=True)
class Row:
    """The result of a run.

    Attributes:
        commands: The number of commands that were needed until the run ended: one, and one for each resume.
        faults: The number of log lines of kind `fault`.
        last_line: The last printed line, if the run could not be continued.
    """

    fault: str
    engine: str
    number: int
    ended: bool
    equal: bool
    lost: int
    doubled: int
    faults: int
    commands: int
    seconds: float
    last_line: str = ""


def main(
    runs: int = 3,
    faults: tuple[str, ...] = tuple(FAULTS),
    engines: tuple[Engine, ...] = get_args(Engine),
    out: Path = RESULTS,
) -> None:
    """Execute the missing runs of each fault on each kind of cluster, and print a summary.

    Args:
        runs: The number of rows for each fault and kind of cluster.
        faults: The faults.
        engines: The kinds of clusters.
        out: The CSV file to which rows are added.
    """
    refuse_unknown_names("faults", faults, FAULTS)
    refuse_unknown_names("engines", engines, get_args(Engine))
    with TemporaryDirectory(prefix="fedraa-faults-") as name:
        undisturbed = make_undisturbed_run(Path(name), UPDATES)
        cases = [(fault, engine, number) for number, fault, engine in product(range(runs), faults, engines)]
        add_missing_rows(out, ("fault", "engine", "number"), cases, partial(make_run, undisturbed=undisturbed))
    Console().print(make_table(read_rows(out, Row)))


def make_undisturbed_run(folder: Path, updates: int) -> Path:
    """Execute a run with the options FLAGS in this process without faults, and return its directory."""
    options = Experiment(hidden=(8,), clients=4, local_epochs=1, checkpoint_every=20, updates=updates, quiet=True)
    return run(options, engine="local", out=folder / "run").directory


def make_run(fault: str, engine: Engine, number: int, undisturbed: Path) -> Row:
    """Execute the run with a fault, and compare it with the undisturbed run.

    A run that ends early is continued.

    Args:
        fault: The name of the fault.
        engine: The kind of cluster.
        number: The number of the run in the table.
        undisturbed: The directory of the undisturbed run.
    """
    started = time.monotonic()
    with TemporaryDirectory(prefix="fedraa-fault-") as name, _variables_of(engine, fault) as (flags, variables):
        out = Path(name) / "run"
        command: Sequence[str] = ("run", *FLAGS, "--updates", str(UPDATES), "--workers", "2", "--out", str(out), *flags)
        commands = 0
        last_line = ""
        while commands < MAX_COMMANDS and not (out / SUMMARY).exists():
            commands += 1
            last_line = _execute_command(command, variables)
            if RESUME not in last_line:
                break
            command = ("resume", str(out), "--quiet")
        seconds = round(time.monotonic() - started, 1)
        if not (out / SUMMARY).exists():
            return Row(fault, engine, number, False, False, 0, 0, 0, commands, seconds, last_line)
        lost, doubled = lost_and_doubled(out, undisturbed)
        history = History(out)
        equal = history.summary["model_sha256"] == History(undisturbed).summary["model_sha256"]
        faults = sum(line["kind"] == "fault" for line in history.lines())
        return Row(fault, engine, number, True, equal, lost, doubled, faults, commands, seconds)


@contextmanager
def _variables_of(engine: Engine, fault: str) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """Yield the flags and environment variables of a run.

    The engine `follower` also needs a cluster. The cluster runs during the block.
    """
    variables = {**os.environ, **FAULTS[fault]}
    if engine == "plain":
        yield (), variables
    elif engine == "shards":
        yield ("--server-shards", "2"), variables
    else:
        environment = Environment(Path.cwd(), Path(sys.executable))
        with start_head(environment, FAULTS[fault]) as head:
            yield ("--address", head.client), head.variables


def _execute_command(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Execute a command of fedraa and return its last line of output."""
    with start_tree(
        [sys.executable, "-m", "fedraa", *command],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output: str = process.communicate(timeout=TIMEOUT_S)[0]
        except subprocess.TimeoutExpired:
            return f"no end within {TIMEOUT_S:g} s"
    return (output.strip().splitlines() or [""])[-1]


def make_table(rows: Sequence[Row]) -> Table:
    """Return a table with a row for each fault and kind of cluster."""
    table = Table("fault", "engine", "runs", "equal bits", "lost tasks", "doubled tasks", "commands to continue", "s")
    cells = list(dict.fromkeys((row.fault, row.engine) for row in rows))
    for cell in cells:
        of_cell = [row for row in rows if (row.fault, row.engine) == cell]
        numbers = (
            len(of_cell),
            sum(row.equal for row in of_cell),
            sum(row.lost for row in of_cell),
            sum(row.doubled for row in of_cell),
            sum(row.commands - 1 for row in of_cell),
            max(row.seconds for row in of_cell),
        )
        table.add_row(*cell, *(f"{number:g}" for number in numbers))
    return table
