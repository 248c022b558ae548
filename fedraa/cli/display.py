"""Tables that several commands print."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedraa.callbacks.events import Progress
from fedraa.callbacks.progress_bar import progress_line
from fedraa.callbacks.progress_log import next_commands
from fedraa.cli.console import print_line, print_table, printing_results
from fedraa.numbers import format_count, format_quantity
from fedraa.objectives.metric_spec import metric_heading
from fedraa.rundir.config_file import time_unit
from fedraa.rundir.failures import describe_clients, retried_clients
from fedraa.rundir.history import History, method_name
from fedraa.rundir.status import Status
from fedraa.waiting import is_shown


def print_run(history: History) -> None:
    """Print the result of a finished run, and the commands with which the user can look at it and check it."""
    with printing_results("the run", history.directory):
        print_result(history)
        print_next_commands(history.directory)


def print_next_commands(run: Path) -> None:
    """Print the commands with which the user can look at a finished run and check it.

    Without a terminal nothing is printed, because the run has logged these commands.
    """
    if is_shown():
        print_line(f"next: {next_commands(run)}")


def print_profile(rows: list[tuple[str, str, float, float]]) -> None:
    """Print how each process spent its time.

    The rows have the process, the activity, its seconds, and its fraction of the process's time.
    """
    table = Table("process", "activity", "seconds", "share", box=box.SIMPLE_HEAD)
    for process, activity, seconds, share in rows:
        table.add_row(process, activity, f"{seconds:.2f}", f"{share:.1%}")
    print_table(table)


def print_statuses(rows: list[Status]) -> None:
    """Print a table with the state of each run."""
    table = Table("run", "state", "step", "time", "accuracy", "faults", "quarantined", box=box.SIMPLE_HEAD)
    for row in rows:
        value = "–"
        if row.value is not None:
            value = f"{row.value:.4f}"
        if row.metric != "accuracy":
            value = f"{row.metric} {value}"
        quarantined = "–"
        if row.quarantined:
            quarantined = _with_reasons(format_count(len(row.quarantined), "client"), row.quarantined)
        table.add_row(
            escape(row.run),
            escape(row.state),
            f"{row.step}: {row.note}".removesuffix(": "),
            f"{row.t:.4g}",
            value,
            str(row.faults),
            escape(quarantined),
        )
    print_table(table)


def print_cluster_runs(rows: list[tuple[str, Progress | None, int | None]]) -> None:
    """Print a table of the runs of a cluster: for each its label, its progress and its number of started workers.

    The progress is None before the run trains. The number is None if its server does not answer.
    """
    table = Table("run", "progress", box=box.SIMPLE_HEAD)
    for label, progress, started in rows:
        if started is None:
            text = "its server does not answer, or is starting"
        elif progress is None:
            text = f"starting · {format_count(started, 'worker')} started"
        else:
            text = progress_line(progress)
        table.add_row(escape(label), text)
    print_table(table)


def print_result(history: History) -> None:
    """Print the result of a finished run as a table."""
    total: Mapping[str, Any] = history.summary
    experiment = history.config["experiment"]
    main = history.metric_spec.main
    quarantined = total["quarantined"]
    tasks = format_count(total["tasks"], "task")
    unit = " s" if time_unit(experiment) == "s" else ""
    rows = {
        "ended by": f"{total['reason']} {total.get('by', '')}".strip(),
        "steps": f"{total['steps']} ({tasks}): {total.get('note', '')}".removesuffix(": "),
        f"{experiment['clock']} time": f"{total['time']:.4g}{unit}",
        "real time": f"{total['wall']:.1f} s",
        metric_heading(main): f"{total[main]:.4f} (best {total[f'best_{main}']:.4f})",
        **{metric_heading(name): f"{total[name]:.4f}" for name in history.metric_spec.names if name != main},
        "worst client": f"{total['client_worst']:.4f}",
        "sent": f"{format_quantity(total['bytes_down'], 'B')} down, {format_quantity(total['bytes_up'], 'B')} up",
        "computed": format_quantity(total["flops"], "FLOP"),
        "staleness": f"mean {total['staleness_mean']:.2f}, max {total['staleness_max']}",
        "faults": total["faults"],
    }
    if "lost" in total:
        rows["lost"] = format_count(total["lost"], "late task")
    if "energy" in total:
        rows["energy"] = format_quantity(total["energy"], "J")
    if total["dropped"]:
        rows["dropped"] = _with_reasons(format_count(total["dropped"], "task"), retried_clients(total))
    if quarantined:
        rows["quarantined"] = _with_reasons(format_count(len(quarantined), "client"), quarantined)
    rows["model sha256"] = str(total["model_sha256"])[:16]
    rows["written to"] = history.directory
    if total["time_to_target"] is not None:
        goal = experiment.get("target") or f"accuracy {experiment['target_accuracy']}"
        rows["time to target"] = f"{total['time_to_target']:.4g}{unit} ({goal})"
    table = Table(
        title=f"{method_name(history.config)} on {experiment['dataset']}", show_header=False, box=box.SIMPLE_HEAD
    )
    for name, value in rows.items():
        table.add_row(name, escape(str(value)))
    print_table(table)


def _with_reasons(count: str, clients: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join([count, *describe_clients(clients)])
