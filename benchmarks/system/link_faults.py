"""Test runs on two hosts whose network link is cut, slow or lossy.

`python -m benchmarks link_faults` needs root on Linux. The hosts are network namespaces on this machine, and one Ray
cluster runs on both. The command adds rows to `benchmarks/results/link_faults.csv`. The driver is on the first host.
The server is on the first host (`near`) or on the second (`far`).
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.system.chaos_table import lost_and_doubled
from benchmarks.system.faults import FLAGS, MAX_COMMANDS, RESUME, make_undisturbed_run
from benchmarks.system.option_checks import refuse_unknown_names
from benchmarks.system.processes import start_tree
from benchmarks.system.rows import add_missing_rows, read_rows
from benchmarks.system.two_hosts import Host, Link, two_hosts
from fedraa.errors import InputError, RunFailed
from fedraa.rundir.file_names import EVENTS, SUMMARY
from fedraa.rundir.history import History

RESULTS = Path(__file__).parents[1] / "results" / "link_faults.csv"
UPDATES = 400
COMMITS_BEFORE_CUT = 40
PORT = 6390
START_S, END_S = 300.0, 300.0
POLL_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Fault:
    """A fault of the link: it is cut for `cut_s` seconds, or delays and loses packets during the whole run."""

    cut_s: float = 0.0
    delay_s: float = 0.0
    loss: float = 0.0


FAULTS = {
    "cut of 5 s": Fault(cut_s=5.0),
    "cut of 15 s": Fault(cut_s=15.0),
    "cut of 30 s": Fault(cut_s=30.0),
    "cut of 60 s": Fault(cut_s=60.0),
    "delay of 20 to 40 ms": Fault(delay_s=0.02),
    "1 % of packets lost": Fault(loss=0.01),
    "delay of 20 to 40 ms, 1 % lost": Fault(delay_s=0.02, loss=0.01),
}
SERVERS = ("near", "far")


@dataclass(frozen=True)
class Row:
    """The result of a run.

    Attributes:
        commands: The number of commands that it took to end the run: one, and one for each resume.
        silence: The seconds from the end of the cut to the next commit.
        last_line: The last line of the run's output.
    """

    fault: str
    server: str
    number: int
    ended: bool
    equal: bool
    lost: int
    doubled: int
    commands: int
    silence: float
    seconds: float
    dropped: int
    last_line: str = ""


def main(
    runs: int = 1,
    faults: tuple[str, ...] = tuple(FAULTS),
    servers: tuple[str, ...] = SERVERS,
    out: Path = RESULTS,
) -> None:
    """Execute the runs that the file `out` does not contain yet, and print a summary.

    Args:
        runs: The number of runs for each combination of a fault and a host of the server.
        faults: The faults.
        servers: The hosts of the server: near, far, or both.
        out: The CSV file to which rows are added.
    """
    refuse_unknown_names("faults", faults, FAULTS)
    refuse_unknown_names("servers", servers, SERVERS)
    if os.geteuid():
        raise InputError("link_faults", "it makes network namespaces", hint="run it as root")
    with TemporaryDirectory(prefix="fedraa-link-") as name:
        undisturbed = make_undisturbed_run(Path(name), UPDATES)
        cases = [(fault, server, number) for number, fault, server in product(range(runs), faults, servers)]
        add_missing_rows(out, ("fault", "server", "number"), cases, partial(make_run, undisturbed=undisturbed))
    Console().print(make_table(read_rows(out, Row)))


def make_run(fault: str, server: str, number: int, undisturbed: Path) -> Row:
    """Execute a run with a fault of the link, and compare it with the undisturbed run.

    Args:
        fault: The name of the fault.
        server: The host of the server, near or far.
        number: The number of the run in the table.
        undisturbed: The directory of the undisturbed run.
    """
    what = FAULTS[fault]
    started = time.monotonic()
    with ExitStack() as stack:
        near, far, link = stack.enter_context(two_hosts())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fl-", ignore_cleanup_errors=True)))
        cluster = stack.enter_context(_cluster(near, far, folder))
        link.delay_s = link.jitter_s = what.delay_s
        link.loss = what.loss
        out = folder / "run"
        node = {"near": near, "far": far}[server]
        command = ["run", *FLAGS, "--updates", str(UPDATES), "--workers", "2", "--placement", "spread"]
        command += ["--out", str(out)]
        command += ["--address", f"{near.address}:{PORT}", "--server-node", node.address]
        commands = 0
        silence = 0.0
        last_line = ""
        while commands < MAX_COMMANDS and not (out / SUMMARY).exists():
            commands += 1
            with _start(near, command, cluster.variables, folder) as process:
                if commands == 1 and what.cut_s:
                    silence = _cut_link(link, what.cut_s, process, out)
                last_line = _await_end(process, folder)
            if RESUME not in last_line:
                break
            cluster.start_stopped()
            command = ["resume", str(out), "--quiet"]
        seconds = round(time.monotonic() - started, 1)
        ended = (out / SUMMARY).exists()
        lost = doubled = 0
        equal = False
        if ended:
            lost, doubled = lost_and_doubled(out, undisturbed)
            equal = History(out).summary["model_sha256"] == History(undisturbed).summary["model_sha256"]
        return Row(
            fault, server, number, ended, equal, lost, doubled, commands, silence, seconds, link.dropped, last_line
        )


@dataclass
class Cluster:
    """A Ray cluster on two hosts with one core each. The end of `stack` kills its processes."""

    near: Host
    far: Host
    folder: Path
    variables: Mapping[str, str]
    stack: ExitStack
    _processes: "dict[Host, subprocess.Popen[bytes]]" = field(default_factory=dict)

    def start_stopped(self) -> None:
        """Start Ray on each host on which it does not run.

        Ray ends itself on a host that the cluster counts as dead.
        """
        head = ("--head", "--port", str(PORT), "--include-dashboard", "false", "--temp-dir", str(self.folder / "r"))
        for host, flags in ((self.near, head), (self.far, ("--address", f"{self.near.address}:{PORT}"))):
            if host in self._processes and self._processes[host].poll() is None:
                continue
            log = self.folder / f"{host.name}.log"
            with log.open("wb") as stream:
                command = host.command(sys.executable, "-m", "ray.scripts.scripts", "start", *flags, *self._flags(host))
                tree = start_tree(command, env=self.variables, stdout=stream, stderr=stream)
                process = self.stack.enter_context(tree)
            self._processes[host] = process
            _await(partial(_has_started, log), process)

    def _flags(self, host: Host) -> tuple[str, ...]:
        memory = ("--object-store-memory", "200000000")
        return ("--node-ip-address", host.address, "--num-cpus", "1", *memory, "--block", "--disable-usage-stats")


@contextmanager
def _cluster(near: Host, far: Host, folder: Path) -> Iterator[Cluster]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        cluster = Cluster(near, far, folder, variables, stack)
        cluster.start_stopped()
        yield cluster


def _has_started(log: Path) -> bool:
    return "Ray runtime started" in log.read_text()


@contextmanager
def _start(
    host: Host, command: list[str], variables: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command of fedraa on a host, with its output in a file of `folder`. Kill it at the end of the block."""
    command = host.command(sys.executable, "-m", "fedraa", *command)
    with (
        (folder / "output").open("wb") as stream,
        start_tree(command, env=variables, stdout=stream, stderr=stream) as process,
    ):
        yield process


def _await_end(process: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Wait until a command ends, and return its last line of output."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        return f"no end within {END_S:g} s"
    lines = (folder / "output").read_text().strip().splitlines()
    return lines[-1] if lines else ""


def _cut_link(link: Link, seconds: float, process: "subprocess.Popen[bytes]", out: Path) -> float:
    """Cut the link after some `commit` log lines. Return the seconds from the cut's end to the next `commit` line."""
    _await(lambda: _count_commits(out) >= COMMITS_BEFORE_CUT, process)
    with link.cut():
        time.sleep(seconds)
    healed = time.monotonic()
    commits = _count_commits(out)
    while _count_commits(out) == commits and process.poll() is None:
        time.sleep(POLL_INTERVAL_S)
    return round(time.monotonic() - healed, 1)


def _count_commits(out: Path) -> int:
    path = out / EVENTS
    if not path.exists():
        return 0
    return path.read_text().count('"commit"')


def _await(happened: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    """Wait until `happened()` is true.

    Raises RunFailed after `START_S` seconds, or if the process ends earlier.
    """
    give_up = time.monotonic() + START_S
    while not happened():
        if process.poll() is not None or time.monotonic() > give_up:
            problem = f"the command ended with {process.poll()}, or took over {START_S:g} s: {process.args!r}"
            raise RunFailed("link_faults", problem)
        time.sleep(POLL_INTERVAL_S)


def make_table(rows: list[Row]) -> Table:
    """Return a table with a row for each run."""
    table = Table("fault", "server", "equal bits", "lost", "doubled", "commands", "s until the next commit", "s")
    for row in rows:
        numbers = (row.lost, row.doubled, row.commands, row.silence, row.seconds)
        table.add_row(row.fault, row.server, "yes" if row.equal else "no", *(f"{number:g}" for number in numbers))
    return table
