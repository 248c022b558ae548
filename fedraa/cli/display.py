"""The tables that the command line shows."""

import json
from dataclasses import MISSING, asdict, fields, is_dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedraa.callbacks.events import Progress
from fedraa.callbacks.progress_bar import figures
from fedraa.client.solver import Solver
from fedraa.methods.catalog import METHODS
from fedraa.methods.method import Method
from fedraa.rundir.history import History
from fedraa.rundir.status import Status
from fedraa.units import quantity

AXES = ("submodel", "local", "update", "schedule")
WIDEST = 10_000  # characters
PLAIN = Solver(momentum=0.0)  # what a local solver sets beyond this tells it from others


def say(text: str) -> None:
    """One line for the user."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def show(table: Table) -> None:
    """A table; where the output is no terminal it gets all the width that it needs."""
    console = Console()
    if not console.is_terminal:
        wanted = console.measure(table, options=console.options.update(width=WIDEST)).maximum
        console = Console(width=max(console.width, wanted))
    console.print(table)


def profile_table(rows: list[tuple[str, str, float, float]]) -> None:
    """Who, what, seconds and the share of the time that there was."""
    table = Table("who", "doing", "seconds", "share", box=box.SIMPLE_HEAD)
    for who, what, seconds, share in rows:
        table.add_row(who, what, f"{seconds:.2f}", f"{share:.1%}")
    show(table)


def status_table(rows: list[Status]) -> None:
    """How the runs of this machine stand."""
    table = Table("run", "state", "step", "time", "accuracy", "faults", box=box.SIMPLE_HEAD)
    for row in rows:
        accuracy = "–" if row.accuracy is None else f"{row.accuracy:.4f}"
        if row.figure != "accuracy":
            accuracy = f"{row.figure} {accuracy}"
        table.add_row(escape(row.run), row.state, str(row.step), f"{row.t:.4g}", accuracy, str(row.faults))
    show(table)


def cluster_table(rows: list[tuple[str, Progress | None, int]]) -> None:
    """The runs on a cluster: label, progress, workers that have started."""
    table = Table("run", "progress", box=box.SIMPLE_HEAD)
    for label, progress, started in rows:
        table.add_row(escape(label), figures(progress) if progress else f"starting · {started} workers have started")
    show(table)


def closing_table(history: History) -> None:
    """What a finished run came to."""
    total = history.summary
    experiment, main = history.config["experiment"], history.figures.main
    rows = {
        "ended by": f"{total['reason']} {total['by']}" if "by" in total else total["reason"],
        "steps": f"{total['steps']} ({total['tasks']} tasks)",
        f"{experiment['clock']} time": f"{total['time']:.4g}",
        "real time": f"{total['wall']:.1f} s",
        main.replace("_", " "): f"{total[main]:.4f} (best {total[f'best_{main}']:.4f})",
        **{name.replace("_", " "): f"{total[name]:.4f}" for name in history.figures.names if name != main},
        "worst client": f"{total['client_worst']:.4f}",
        "sent": f"{quantity(total['bytes_down'], 'B')} down, {quantity(total['bytes_up'], 'B')} up",
        "computed": quantity(total["flops"], "FLOP"),
        "staleness": f"mean {total['staleness_mean']:.2f}, max {total['staleness_max']}",
        "faults": total["faults"],
        "model sha256": str(total["model_sha256"])[:16],
        "written to": history.directory,
    }
    if total["time_to_target"] is not None:
        goal = experiment.get("target") or f"accuracy {experiment['target_accuracy']}"
        rows["time to target"] = f"{total['time_to_target']:.4g} ({goal})"
    table = Table(title=f"{experiment['method']} on {experiment['dataset']}", show_header=False, box=box.SIMPLE_HEAD)
    for name, value in rows.items():
        table.add_row(name, str(value))
    show(table)


def methods_table(*, as_json: bool) -> None:
    """Every method and its four choices, for people or for scripts."""
    if as_json:
        listed = [
            {"name": name, "paper": method.paper, "note": method.note, "state": method.keeps}
            | {axis: {"kind": type(choice).__name__, **_fields(choice)} for axis, choice in _choices(method)}
            for name, method in METHODS.items()
        ]
        say(json.dumps(listed, indent=2))
        return
    table = Table("method", *AXES, "state", "paper", box=box.SIMPLE_HEAD)
    for name, method in METHODS.items():
        table.add_row(name, *(words(choice) for _, choice in _choices(method)), escape(method.keeps), _source(method))
    show(table)


def words(choice: object) -> str:
    """A choice on one line: its kind, what it sets, and the parts of it that are not as usual."""
    assert is_dataclass(choice)
    texts = []
    for item in fields(choice):
        value = getattr(choice, item.name)
        if is_dataclass(value):
            usual = item.default if item.default_factory is MISSING else item.default_factory()
            texts += [] if value == usual else [f"({words(value)})"]
        elif value and not (isinstance(choice, Solver) and value == getattr(PLAIN, item.name)):
            texts.append(item.name if value is True else f"{item.name} {_listed(value)}")
    return type(choice).__name__ + (f": {', '.join(texts)}" if texts else "")


def _listed(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _source(method: Method) -> str:
    return f"{method.paper}; {method.note}" if method.note else method.paper


def _choices(method: Method) -> list[tuple[str, object]]:
    return [(axis, getattr(method, axis)) for axis in AXES]


def _fields(choice: object) -> dict[str, object]:
    assert is_dataclass(choice)
    assert not isinstance(choice, type)
    return asdict(choice)
