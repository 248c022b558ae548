"""Commands for runs in progress, on this machine or on a cluster."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from fedraa.errors import InputError


@dataclass(frozen=True)
class Status:
    """How runs stand: those of this machine, or those on a cluster."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories (default: those in runs/)."""
    address: str | None = None
    """Of a Ray cluster: list the runs that are on it now."""

    def __call__(self) -> None:
        from fedraa.cli.display import cluster_table, status_table

        if self.address is None:
            from fedraa.api import RUNS
            from fedraa.rundir.status import status, statuses

            status_table([status(run) for run in self.runs] if self.runs else statuses(RUNS))
            return
        if self.runs:
            raise InputError(
                "address", f"with {self.address!r} all runs of the cluster are listed", hint="give no run directories"
            )
        from actors.cluster.operations import runs

        cluster_table(runs(self.address))


@dataclass(frozen=True)
class Stop:
    """Ask a run to end with a checkpoint, from which `fedraa resume` goes on."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    address: str | None = None
    """Of the Ray cluster that the run is on, if it was not started on this machine."""

    def __call__(self) -> None:
        if self.address is None:
            from fedraa.rundir.file_names import EVENTS
            from fedraa.rundir.history import History
            from fedraa.rundir.run_lock import interrupt

            interrupt(self.run, History(self.run).directory / EVENTS)
            return
        from actors.cluster.operations import stop

        stop(str(self.run), self.address)


@dataclass(frozen=True)
class Submit:
    """Run a command as a job on a cluster, which goes on without this machine: fedraa submit -- run --method ..."""

    command: tyro.conf.Positional[tuple[str, ...]]
    """What follows `fedraa`, after --; a run's --out is on the head node, an absolute path is best."""
    address: str = "http://127.0.0.1:8265"
    """Of the cluster's dashboard."""
    working_dir: Path | None = None
    """A folder to send along, for files that the command names (default: nothing but this code)."""

    def __call__(self) -> None:
        from actors.cluster.submit import submit
        from fedraa.cli.display import say

        submit(self.command, self.address, self.working_dir, say)


@dataclass(frozen=True)
class Fetch:
    """Copy a run directory from a node of a cluster to here."""

    run: tyro.conf.Positional[Path]
    """The run directory there."""
    address: str
    """A running Ray cluster: auto, HOST:PORT, or ray://HOST:PORT for one that is elsewhere."""
    out: Path
    """The directory to write here, new or empty."""
    node: str | None = None
    """The node's id, address or name (default: the head node)."""

    def __call__(self) -> None:
        from actors.cluster.operations import fetch

        fetch(self.run, self.node, self.address, self.out)
