"""The runs of a report. The runs of a group differ only in their seeds."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

import pandas as pd

from fedraa.config.experiment import Experiment
from fedraa.errors import Inconsistent, InputError
from fedraa.objectives import MetricSpec, read_metric_spec
from fedraa.report.command import repeat_command
from fedraa.rundir.config_file import RESTORE, time_heading, time_unit
from fedraa.rundir.digests import check_seal
from fedraa.rundir.file_names import CLIENTS, CONFIG, EVALS, EVENTS, PARTITION, SUMMARY
from fedraa.rundir.history import History, method_name
from fedraa.rundir.partition_file import read_partition
from fedraa.rundir.status import runs_below
from fedraa.rundir.summary import summarise_unfinished
from fedraa.rundir.task_timeline import TaskTimeline, read_timeline

# The options in which runs of one group may differ.
PER_RUN = {"seed", "out", "quiet", "address"}
# The files that a report shows.
SHOWN = (CONFIG, EVENTS, EVALS, SUMMARY, CLIENTS)
# Maximum number of characters of a label in a legend.
MAX_LABEL_CHARACTERS = 40


class Run:
    """A finished or unfinished run, read from its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.history = History(directory)
        self.config = self.history.config
        self.ended = (directory / SUMMARY).exists()
        self.summary: dict[str, Any] = self.history.summary if self.ended else summarise_unfinished(self.history)
        self._check_files()

    def _check_files(self) -> None:
        """Raise InputError if the files are damaged or were changed after the run."""
        if self.ended:
            refuse_changed(self.directory)
            return
        try:
            # Reading a property raises an error if its file is damaged.
            for name in ("tasks", "rounds", "evals", "options", "clients"):
                getattr(self, name)
            if (self.directory / PARTITION).exists():
                read_partition(self.directory)
        except InputError as error:
            raise InputError("run", f"{self.directory} is damaged: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{self.directory} is damaged: {type(error).__name__}: {error}"
            raise InputError("run", problem, hint=RESTORE) from None

    @property
    def options(self) -> dict[str, Any]:
        """The options of the experiment, from config.json. Options that its version did not have get their defaults."""
        return {**default_options(), **self.config["experiment"]}

    @property
    def command(self) -> str:
        return repeat_command(self.config["experiment"], self.config.get("given", ()))

    @property
    def metric_spec(self) -> MetricSpec:
        return read_metric_spec(self.config)

    @property
    def method(self) -> str:
        return method_name(self.config)

    @property
    def seed(self) -> int:
        return int(self.options["seed"])

    @property
    def clients(self) -> int:
        return int(self.options["clients"])

    @property
    def end(self) -> float:
        """The time on the run's clock at which the run ended."""
        return float(self.summary["time"])

    @property
    def time_unit(self) -> str:
        """The unit of the run's clock: `s` or `time units`."""
        return time_unit(self.options)

    @cached_property
    def timeline(self) -> TaskTimeline:
        return read_timeline(self.directory, partial=not self.ended)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """One row per task. For an unfinished task, the column `end` has the time at which the run ended."""
        tasks = self.timeline.tasks()
        return tasks.fillna({"end": self.end})

    @property
    def done_tasks(self) -> pd.DataFrame:
        """The rows of `tasks` with an applied update."""
        return self.tasks[self.tasks["done"]]

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round; none for an asynchronous run."""
        return self.timeline.rounds()

    @cached_property
    def evals(self) -> pd.DataFrame:
        """The columns of evals.csv, and `bytes`, the traffic of all tasks committed before each evaluation."""
        evals = self.history.evals
        return evals.assign(bytes=self.timeline.bytes_until(evals["t"].to_numpy(float)))

    @property
    def idle_fraction(self) -> float:
        """The mean fraction of the run's time in which a client had no task."""
        return max(0.0, self.timeline.idle_fraction(self.clients) or 0.0)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed.

    Attributes:
        label: The name of the group in tables and plots.
        slug: The label in a form for file names. It is unique.
        runs: The runs, in the order of their seeds.
    """

    label: str
    slug: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]


def refuse_changed(directory: Path) -> None:
    """Raise InputError if the files of an ended run that a report shows were changed after its end."""
    names = [*SHOWN]
    # A report shows nothing of the partition, so a copy of a run directory may lack it.
    if (directory / PARTITION).exists():
        names.append(PARTITION)
    try:
        check_seal(directory, names)
    except Inconsistent as error:
        raise InputError("run", f"{directory} is damaged: {error}", hint=RESTORE) from None


@cache
def default_options() -> Mapping[str, Any]:
    """Return the options of an experiment without settings, as in config.json."""
    return Experiment().model_dump(mode="json")


def load_groups(directories: Sequence[Path]) -> list[Group]:
    """Return groups of runs. The runs of a group differ only in their seeds.

    Runs with models of different sizes, or with samples of different shapes, are not in one group. Each directory is a
    run directory or a folder of run directories. Raises InputError if a directory is not a run, has no evaluation yet,
    or occurs twice.
    """
    runs = [Run(directory) for directory in chain.from_iterable(map(_find_runs, directories))]
    if not runs:
        raise InputError("runs", "the list is empty", hint="give one or more run directories")
    for run in runs[1:]:
        # Only some runs may evaluate personal models or metrics of the user.
        specs = {replace(compared.metric_spec, personal=False, own=()) for compared in (run, runs[0])}
        if len(specs) > 1:
            raise InputError(
                "runs",
                f"the main metric of {run.directory} is {run.metric_spec.main}, "
                f"and the main metric of {runs[0].directory} is {runs[0].metric_spec.main}",
                hint="give runs of one objective",
            )
    groups: dict[tuple[str, str, str], dict[int, Run]] = {}
    for run in runs:
        options = {name: value for name, value in run.options.items() if name not in PER_RUN}
        seeds = groups.setdefault((repr(options), _method_configuration(run), _model_and_samples(run)), {})
        if run.seed in seeds:
            raise InputError(
                "runs",
                f"{run.directory} and {seeds[run.seed].directory} have the same settings and the same seed, {run.seed}",
                hint="give only one of them",
            )
        seeds[run.seed] = run
    members = [tuple(seeds[seed] for seed in sorted(seeds)) for seeds in groups.values()]
    labels = _label_groups(members)
    return [Group(*fields) for fields in zip(labels, _make_slugs(labels), members, strict=True)]


def have_same_clock(groups: Sequence[Group]) -> bool:
    """Return True if the times of all runs have the same clock and the same unit."""
    return len({(run.options["clock"], run.options["units"]) for run in runs_of(groups)}) == 1


def heading_of_times(text: str, groups: Sequence[Group]) -> str:
    """Return the heading of a column of times, without a unit if the clocks of the runs differ."""
    return time_heading(text, groups[0].first.options) if have_same_clock(groups) else text


def have_same_target(groups: Sequence[Group]) -> bool:
    """Return True if all runs have the same target, or none."""
    targets = {(run.options.get("target"), run.options.get("target_accuracy")) for run in runs_of(groups)}
    return len(targets) == 1


def runs_of(groups: Sequence[Group]) -> list[Run]:
    """Return the runs of all groups in their order."""
    return [*chain.from_iterable(group.runs for group in groups)]


def _method_configuration(run: Run) -> str:
    """Return the method's full configuration as a text. The numbers 1 and 1.0 are the same in this text."""
    method = dict(run.config["method"])
    submodel = method.get("submodel")
    # Automatic capacities may differ between seeds of one experiment, because the devices may differ.
    if run.options["capacities"] == "auto" and isinstance(submodel, Mapping):
        method["submodel"] = {name: value for name, value in submodel.items() if name != "capacities"}
    return json.dumps(_integers_to_floats(method), sort_keys=True)


def _model_and_samples(run: Run) -> str:
    """Return the size of the model and the form of the samples as a text.

    They can differ between runs with equal options if the model or the data set is an object or a changed file.
    """
    resolved = run.config["resolved"]
    inputs = resolved["inputs"]
    form = [resolved["tensors"], resolved["parameters"], inputs["classes"], inputs["samples"]]
    return json.dumps(form, sort_keys=True)


def _integers_to_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _integers_to_floats(nested) for name, nested in value.items()}
    if type(value) is int:
        return float(value)
    return value


def differing_options(runs: Sequence[Run]) -> list[str]:
    """Return the options, besides method and seed, in which the runs differ."""
    names = dict.fromkeys(chain.from_iterable(run.options for run in runs))
    return [
        name
        for name in names
        if name not in PER_RUN | {"method"} and len({repr(run.options.get(name)) for run in runs}) > 1
    ]


def _label_groups(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return a label per group: its method, and the options in which it differs from other groups of this method."""
    labels = []
    firsts = [group[0] for group in groups]
    for group, run in zip(groups, firsts, strict=True):
        alike = [other for other in firsts if other.method == run.method]
        options = differing_options(alike)
        names = [_method_with_options(other, options) for other in alike]
        if max(map(len, names)) > MAX_LABEL_CHARACTERS:
            names = [run.method] * len(alike)
        place = alike.index(run)
        label = names[place]
        if names.count(label) > 1:
            label += f" #{names[:place].count(label) + 1}"
        labels.append(label + _describe_states(group))
    return labels


def _describe_states(runs: Sequence[Run]) -> str:
    """Return the states of runs that are not finished or have no step, such as ` (interrupted in 1 of 3)`."""
    states = [run.summary.get("note", "") if run.ended else run.summary["reason"] for run in runs]
    notes = []
    for state, number in Counter(filter(None, states)).items():
        notes.append(state if number == len(runs) else f"{state} in {number} of {len(runs)}")
    if not notes:
        return ""
    return f" ({', '.join(notes)})"


def _make_slugs(labels: Sequence[str]) -> list[str]:
    """Return each label in a form for file names. If two labels have the same form, the second gets a number."""
    slugs: list[str] = []
    for label in labels:
        name = re.sub(r"[^\w.]+", "-", label.lower())
        numbered = (f"{name}-{number}" for number in count(2))
        slugs.append(next(slug for slug in chain([name], numbered) if slug not in slugs))
    return slugs


def _method_with_options(run: Run, options: Sequence[str]) -> str:
    parts = [run.method]
    for name in options:
        value = run.options.get(name)
        parts.append(f"{name} {'default' if value is None else value_text(value)}")
    return ", ".join(parts)


def custom_metrics_of(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the last values of custom metrics by name; None for a value that is not finite."""
    return dict(summary.get("metrics", {}))


def value_text(value: object) -> str:
    """Return a JSON value as a text of one line. The values of a list are separated by spaces, and None is a dash."""
    if isinstance(value, list):
        return " ".join(map(value_text, value))
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _find_runs(directory: Path) -> list[Path]:
    """Return the run directories in a folder.

    Returns only the folder itself if it is a run directory, or if it contains no run.
    """
    if (directory / CONFIG).is_file():
        return [directory]
    return runs_below(directory) or [directory]
