"""A table that counts the runs with faults, their wrong results, and their lost and doubled tasks.

`python -m benchmarks fault_counts` reads the tables of the commands `chaos`, `faults`, `link_faults` and
`benchmarks.system.chaos` in `benchmarks/results`. Usually a trial is a run with a fault. If a run kills or freezes
processes at random times, each kill and each freeze is a trial.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from rich.console import Console
from rich.table import Table

from benchmarks.system import chaos_matrix, chaos_table, faults, link_faults
from benchmarks.system.rows import read_rows, read_table


@dataclass(frozen=True)
class Count:
    """The number of trials of a command, and the number of wrong results.

    Attributes:
        command: The command that repeats the trials.
        kind: The kind of the trials.
        trials: The number of trials.
        wrong: The number of trials that ended with other bits than the undisturbed run, or did not end.
        lost: The number of tasks without a commit.
        doubled: The number of tasks with two commits.
    """

    command: str
    kind: str
    trials: int
    wrong: int
    lost: int
    doubled: int


def count_trials() -> list[Count]:
    """Return a count for each table of results."""
    counts = [
        _count_runs("chaos", "mixtures of faults", read_rows(chaos_matrix.RESULTS, chaos_matrix.Row)),
        _count_runs("faults", "lost and delayed messages", read_rows(faults.RESULTS, faults.Row)),
        _count_runs("link_faults", "faults of a link between hosts", read_rows(link_faults.RESULTS, link_faults.Row)),
    ]
    rows = read_table(chaos_table.RESULTS)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind]
        trials, right, lost, doubled = (
            sum(int(row[name]) for row in of_kind) for name in ("count", "right", "lost", "doubled")
        )
        counts.append(Count("system.chaos", kind, trials, trials - right, lost, doubled))
    return counts


def _count_runs(command: str, kind: str, rows: Iterable[chaos_matrix.Row | faults.Row | link_faults.Row]) -> Count:
    """Return the counts of a table with one row per run: trials, wrong results, lost tasks and doubled tasks."""
    runs = list(rows)
    return Count(
        command,
        kind,
        trials=len(runs),
        wrong=sum(not row.equal for row in runs),
        lost=sum(row.lost for row in runs),
        doubled=sum(row.doubled for row in runs),
    )


def main() -> None:
    """Print the table, with the sums in the last line."""
    table = Table(*(field.name for field in fields(Count)))
    counts = count_trials()
    for count in counts:
        table.add_row(*(str(getattr(count, field.name)) for field in fields(Count)))
    sums = (sum(getattr(count, name) for count in counts) for name in ("trials", "wrong", "lost", "doubled"))
    table.add_section()
    table.add_row("all", "", *map(str, sums))
    Console().print(table)
