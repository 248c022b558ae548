"""The commands `status`, `stop`, `submit` and `fetch`, for runs on this machine or on a cluster."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from fedraa.errors import InputError


@dataclass(frozen=True)
class Status:
    """Show the state of the runs on this machine or on a cluster."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories (default: those in runs/)."""
    address: str | None = None
    """Address of a Ray cluster, to list its current runs (default: this machine)."""

    def __call__(self) -> None:
        from fedraa.cli.console import print_line
        from fedraa.cli.display import print_cluster_runs, print_statuses

        if self.address is None:
            from fedraa.api import RUNS
            from fedraa.rundir.status import read_status, read_statuses

            statuses = list(map(read_status, self.runs)) or read_statuses(RUNS)
            if statuses:
                print_statuses(statuses)
            else:
                print_line(f"no run is in {RUNS}; name the run directories")
            return
        if self.runs:
            problem = "with an address, the command lists all runs of the cluster"
            raise InputError("address", problem, got=self.address, hint="give no run directories")
        from actors.cluster.operations import list_runs

        runs = list_runs(self.address)
        if runs:
            print_cluster_runs(runs)
        else:
            print_line(f"no run trains at {self.address}")


@dataclass(frozen=True)
class Stop:
    """Stop a run with a checkpoint, from which `fedraa resume` continues."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    address: str | None = None
    """Address of the Ray cluster of a run that another machine started (default: this machine)."""

    def __call__(self) -> None:
        if self.address is None:
            from fedraa.rundir.file_names import EVENTS
            from fedraa.rundir.history import History
            from fedraa.rundir.run_lock import interrupt_run

            interrupt_run(self.run, History(self.run).directory / EVENTS)
            return
        from actors.cluster.operations import stop_run

        stop_run(str(self.run), self.address)


@dataclass(frozen=True)
class Submit:
    """Run a command as a job on a cluster: fedraa submit -- run --out PATH ..."""

    command: tyro.conf.Positional[tuple[str, ...]]
    """Command with its options after --, where --out is an absolute path on the head node."""
    address: str = "http://127.0.0.1:8265"
    """Address of the cluster's dashboard."""
    working_dir: Path | None = None
    """Folder to copy to the cluster, with files that the command reads (default: none)."""

    def __call__(self) -> None:
        from actors.cluster.submit import submit_command
        from fedraa.cli.console import print_line

        submit_command(self.command, self.address, self.working_dir, print_line)


@dataclass(frozen=True)
class Fetch:
    """Copy a run directory from a node of a cluster to this machine."""

    run: tyro.conf.Positional[Path]
    """Run directory on the node."""
    address: str
    """Address of a running Ray cluster: auto, HOST:PORT, or ray://HOST:PORT for a remote one (required)."""
    out: Path
    """Directory to write on this machine, new or empty (required)."""
    node: str | None = None
    """Id, IP address or name of the node (default: the head node)."""

    def __call__(self) -> None:
        from actors.cluster.operations import fetch_run

        fetch_run(self.run, self.node, self.address, self.out)
