"""Compare the memory that `fedraa plan --nodes 4` predicts with the memory of runs on four nodes.

`python -m benchmarks plan_nodes` starts a Ray cluster of four nodes on loopback, each with one core and one worker, and
runs methods with a large model. It writes `benchmarks/results/plan_nodes.csv`. The table has the predicted bytes and
the largest number of used bytes, for each process and for the object stores of all nodes together.
"""

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory

import ray
from rich.console import Console
from rich.table import Table

from benchmarks.system.compat_checks import free_ports
from benchmarks.system.footprint import peak_bytes
from benchmarks.system.option_checks import refuse_below, refuse_unknown_names
from benchmarks.system.processes import call_in_child, start_tree
from benchmarks.system.rows import open_table, read_rows, write_table
from benchmarks.system.trials import synthetic_dataset
from fedraa.cli.plan_cluster import NodeNeeds
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.errors import RunFailed

RESULTS = Path(__file__).parents[1] / "results" / "plan_nodes.csv"
NODES = 4
STORE_BYTES = 1_000_000_000
POLL_INTERVAL_S = 0.1
LIMITS: dict[str, dict[str, int]] = {
    "fedavg": {"rounds": 3},
    "scaffold": {"rounds": 3},
    "heterofl": {"rounds": 3},
    "fed-raa": {"updates": 30},
    "fedbuff": {"updates": 6},
}


@dataclass(frozen=True)
class Row:
    """The predicted and the measured memory in MB of the server, of a worker, or of all object stores."""

    method: str
    part: str
    stated_mb: float
    measured_mb: float


def main(methods: tuple[str, ...] = tuple(LIMITS), width: int = 4096, clients: int = 8, out: Path = RESULTS) -> None:
    """Run methods on four nodes, write the table and print it.

    Args:
        methods: The methods.
        width: The number of units in each of the two hidden layers.
        clients: The number of clients.
        out: The CSV file.
    """
    refuse_unknown_names("methods", methods, LIMITS)
    refuse_below(1, width=width, clients=clients)
    columns = [field.name for field in fields(Row)]
    open_table(out, columns)
    with TemporaryDirectory(prefix="fr-", dir="/tmp", ignore_cleanup_errors=True) as name:
        # The runs are in a child process, because Ray reads these variables only when a process imports it.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "HOME": name}
        rows = call_in_child(measure_methods, methods, width, clients, variables=token)
    write_table(out, columns, rows)
    Console().print(make_table(read_rows(out, Row)))


def measure_methods(methods: tuple[str, ...], width: int, clients: int) -> list[dict[str, object]]:
    """Run methods on four nodes, and return the rows of the table.

    Args:
        methods: The methods.
        width: The number of units in each of the two hidden layers.
        clients: The number of clients.
    """
    rows: list[dict[str, object]] = []
    with _four_nodes():
        for method in methods:
            rows += map(asdict, measure_method(method, width, clients))
    return rows


def measure_method(method: str, width: int, clients: int) -> list[Row]:
    """Run a method on the running cluster. Return a row for the server, for a worker, and for all object stores."""
    dataset = synthetic_dataset(2000)
    experiment = Experiment(
        method=method,
        clients=clients,
        hidden=(width, width),
        local_steps=1,
        batch_size=2,
        workers=NODES,
        placement="spread",
        quiet=True,
        **LIMITS[method],
    )
    needs = NodeNeeds.of(build_run(experiment, dataset=dataset), NODES)
    peaks = peak_bytes(experiment, dataset)
    stated = {"server": needs.server, "worker": needs.worker, "object store": NODES * needs.stored + needs.sent}
    return [Row(method, part, round(size / 1e6, 1), round(peaks[part] / 1e6, 1)) for part, size in stated.items()]


@contextmanager
def _four_nodes() -> Iterator[None]:
    """Start a Ray cluster of four nodes on loopback, and connect to it. The nodes end with the `with` block."""
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    head = ("--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", os.environ["HOME"])
    with ExitStack() as stack:
        for number, flags in enumerate([head, *[("--address", address)] * (NODES - 1)]):
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *flags]
            command += ["--num-cpus", "1", "--node-ip-address", "127.0.0.1", "--disable-usage-stats"]
            command += ["--object-store-memory", str(STORE_BYTES)]
            log = Path(os.environ["HOME"]) / f"{number}.log"
            with log.open("wb") as stream:
                node = stack.enter_context(start_tree(command, stdout=stream, stderr=stream))
            while "Ray runtime started" not in log.read_text():
                if node.poll() is not None:
                    raise RunFailed("plan_nodes", f"node {number} did not start: {log.read_text()}")
                time.sleep(POLL_INTERVAL_S)
        stack.callback(ray.shutdown)
        ray.init(address=address, log_to_driver=False)
        yield


def make_table(rows: list[Row]) -> Table:
    """Return a table with a line for each row."""
    table = Table("method", "part", "stated, MB", "measured, MB")
    for row in rows:
        table.add_row(row.method, row.part, f"{row.stated_mb:g}", f"{row.measured_mb:g}")
    return table
