"""The runs of the study `race` in one setting: tuning trials, tuned runs, untuned runs, and long runs.

Each of these four parts has a subfolder of the setting's folder. Trials and runs that have ended are not repeated.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from benchmarks.studies.metrics import ACCURACY
from benchmarks.studies.race.entrants import ENTRANTS, KNOWN, LIMIT, OURS, ROUNDS, Entrant
from benchmarks.studies.race.measures import Measured, identifying_fields, measure_run
from benchmarks.studies.race.settings import Setting
from benchmarks.studies.study import Cell, Finished, Study, execute_study, has_ended, has_same_method, seed_experiment
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths
from fedraa.errors import InputError
from fedraa.settings.resolve import resolve_method
from fedraa.settings.tuned import read_tuned
from fedraa.tuning import tuner
from fedraa.tuning.journal import Trial

Part = Literal["tuned", "untuned", "long", "long-untuned"]
PARTS: tuple[Part, ...] = get_args(Part)
UNTUNED: tuple[Part, ...] = ("untuned", "long-untuned")
LONG: tuple[Part, ...] = ("long", "long-untuned")
# The seed of all tuning trials. The runs on the page have other seeds.
TUNING_SEED = 1000
# The duration of a long run, as a multiple of FedAvg's time (see `long_time`).
LONG_RUN_FACTOR = 5
LONG_RUN_SEEDS = 5
# The maximum duration of a tuning trial, as a fraction of the time limit of a run (`horizon`).
TRIAL_FRACTION = 0.6
# fedraa cannot download these data sets. The user puts their files into the folder of the data sets.
CIFAR_SUBSETS = ("cifar10-subset", "cifar100-subset")
Log = Callable[[str], None]


@dataclass(frozen=True)
class Race:
    """The study `race` in one setting.

    Attributes:
        setting: The setting.
        folder: The folder of the runs.
        data_dir: The folder of the datasets.
        seeds: The seeds of every entrant.
        jobs: The number of runs at the same time.
        tuned_values: The tuned values of an earlier study, by the name of the entrant. These entrants are not tuned
            again.
        recorded: The runs of an earlier study, which are not repeated.
    """

    setting: Setting
    folder: Path
    data_dir: Path | None
    seeds: tuple[int, ...]
    jobs: int = 1
    tuned_values: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    recorded: Sequence[Measured] = ()

    def __post_init__(self) -> None:
        dataset = self.setting.fields["dataset"]
        if dataset in CIFAR_SUBSETS and self.data_dir is None:
            problem = f"the race {self.setting.name} needs {dataset}.npz"
            raise InputError("data_dir", problem, hint="give the folder that it is in")

    def tune(self, entrant: Entrant, log: Log) -> None:
        """Tune an entrant, but not Fed-Quilt, by its time to a target on validation data."""
        if entrant.name == OURS or entrant.name in self.tuned_values or self._recorded_values(entrant) is not None:
            return

        def log_trial(trial: Trial, count: int, total: int, left: float) -> None:
            result = trial.state if trial.reached is None else f"at the target at {trial.reached:.3g}"
            log(f"{entrant.name}: trial {count} of {total} {result}, {trial.seconds:.0f} s")

        def evaluation_fields(values: Mapping[str, object]) -> dict[str, object]:
            return {
                "eval_every": self._evaluation_interval(entrant, _merge_values(entrant.fields(self.setting), values))
            }

        fields = entrant.fields(self.setting)
        method = fields.pop("method")
        tuner.tune(
            [method],
            entrant.space(self.setting),
            self.setting.trials,
            self._make_experiment(fields),
            jobs=self.jobs,
            ended=log_trial,
            follow=evaluation_fields,
            out=self._tuning_folder(entrant),
            seed=TUNING_SEED,
            target_accuracy=self.setting.aimed_at,
            time=TRIAL_FRACTION * self.setting.horizon,
        )

    def values(self, entrant: Entrant) -> dict[str, Any] | None:
        """Return an entrant's tuned values, or one default of Fed-Quilt; None if the entrant is not tuned yet.

        The default is in the file of tuned values, so that `fedraa compare --terms tuned` accepts Fed-Quilt.
        """
        if entrant.name == OURS:
            return {"local_steps": resolve_method(Experiment(method=OURS)).local.steps}
        if entrant.name in self.tuned_values:
            return self.tuned_values[entrant.name]
        file = self._tuning_folder(entrant) / tuner.TUNED
        if file.is_file():
            return read_tuned(file)[entrant.method()]
        return self._recorded_values(entrant)

    def _recorded_values(self, entrant: Entrant) -> dict[str, Any] | None:
        """Return the tuned values that an entrant's recorded runs used; None if no tuned run is recorded.

        An entrant with a name such as `fedavg-lent` or `fedavg-short` is not in the file of tuned values. The recorded
        runs have its values.
        """
        tuned = (run.fields for run in self.recorded if (run.entrant, run.part) == (entrant.name, "tuned"))
        fields = next(tuned, None)
        if fields is None:
            return None
        recorded = {**fields, **fields.get("override", {})}
        return {name: recorded[name] for name in entrant.space(self.setting) if name in recorded}

    def cell(self, entrant: Entrant, part: Part) -> Cell | None:
        """Return an entrant's experiment in a part of the study.

        Returns None if the entrant has no runs in the part, or if the experiment depends on runs that have not ended.
        """
        has_part = part == "tuned" if entrant.name == LIMIT else entrant.name != OURS or part in UNTUNED
        if not has_part or entrant.refusal_reason(self.setting) is not None:
            return None
        values = {} if part in UNTUNED else self.values(entrant)
        if values is None:
            return None
        fields = _merge_values(entrant.fields(self.setting), values)
        fields["eval_every"] = self._evaluation_interval(entrant, fields)
        if part not in LONG:
            fields |= {"target_accuracy": self.setting.targets[-1], "time": self.setting.horizon}
            return Cell(entrant.name, self._make_experiment(fields), part)
        fields["time"] = self.long_time(part)
        if fields["time"] is None:
            return None
        if fields["eval_every"] is not None:
            fields["eval_every"] *= LONG_RUN_FACTOR
        return Cell(entrant.name, self._make_experiment(fields), part)

    def long_time(self, part: Part = "long") -> float | None:
        """Return the duration of long runs; None before these tuned runs of FedAvg have ended.

        The duration is LONG_RUN_FACTOR times FedAvg's mean time to the highest target that it reaches with each of the
        first `LONG_RUN_SEEDS` seeds, or times `horizon` if there is no such target. More seeds for other entrants do
        not change it. The part `long-untuned` has the fraction `untuned_share` of this duration.
        """
        seeds = self.seeds[:LONG_RUN_SEEDS]
        runs = [run for run in self._load_measured("tuned", [ENTRANTS[ROUNDS]]) if run.seed in seeds]
        if len(runs) < len(seeds):
            return None
        duration = self.setting.horizon
        for level in reversed(self.setting.targets):
            times = [run.times[level] for run in runs]
            if max(times) <= self.setting.horizon:
                duration = sum(times) / len(times)
                break
        share = self.setting.untuned_share if part == "long-untuned" else 1.0
        return float(f"{LONG_RUN_FACTOR * share * duration:.3g}")

    def run(self, entrants: Sequence[Entrant], part: Part, watch: Callable[[Finished, int], None]) -> None:
        """Execute the missing runs of the entrants in a part of the study.

        A run is skipped while it needs the results of other runs that have not ended.

        Args:
            entrants: The entrants.
            part: The part of the study.
            watch: Called when a run ends, with the run and the number of remaining runs.
        """
        cells = self._cells(entrants, part)
        places = [(cell, seed) for cell, seed in product(cells, self.seeds) if self._find_run(cell, seed) is None]
        missing = {(cell.row, seed) for cell, seed in places}
        if missing:
            study = self._make_study(cells)
            execute_study(
                study, self._part_folder(part), self.jobs, watch, lambda cell, seed: (cell.row, seed) in missing
            )

    def measured(self) -> list[Measured]:
        """Return the ended runs, except tuning trials and long runs. The tuned runs come first."""
        return [*self._load_measured("tuned"), *self._load_measured("untuned")]

    def long(self) -> list[Measured]:
        """Return the ended long runs. The tuned runs come first."""
        return [*self._load_measured("long"), *self._load_measured("long-untuned")]

    def _cells(self, entrants: Iterable[Entrant], part: Part) -> list[Cell]:
        cells = (self.cell(entrant, part) for entrant in entrants)
        return [cell for cell in cells if cell is not None]

    def _load_measured(self, part: Part, entrants: Iterable[Entrant] = KNOWN.values()) -> list[Measured]:
        runs = (self._find_run(cell, seed) for cell, seed in product(self._cells(entrants, part), self.seeds))
        return [run for run in runs if run is not None]

    def _find_run(self, cell: Cell, seed: int) -> Measured | None:
        """Return a cell's ended run from the run's directory, otherwise from the record; None if neither has it."""
        part = cast(Part, cell.column)
        experiment = seed_experiment(cell, seed, self._part_folder(part))
        if has_ended(experiment):
            return measure_run(cell.row, part, experiment, self.setting.targets)
        same = (run for run in self.recorded if (run.entrant, run.part, run.seed) == (cell.row, part, seed))
        return next((run for run in same if _has_experiment(run, experiment)), None)

    def outdated_runs(self) -> list[Measured]:
        """Return the recorded runs that had a different method or different settings than new runs would have."""
        runs = []
        for run in self.recorded:
            cell = self.cell(KNOWN[run.entrant], cast(Part, run.part))
            if cell is None or not _has_experiment(run, seed_experiment(cell, run.seed, self.folder)):
                runs.append(run)
        return runs

    def _make_study(self, cells: Sequence[Cell]) -> Study:
        return Study(self.setting.name, self.setting.title, cells, (ACCURACY,), cells[0].row, seeds=self.seeds)

    def _make_experiment(self, fields: Mapping[str, Any]) -> Experiment:
        fields = dict(fields)
        if fields["dataset"] in CIFAR_SUBSETS and self.data_dir is not None:
            fields["dataset"] = str(self.data_dir / f"{fields['dataset']}.npz")
        elif fields["dataset"] != "digits":
            fields["data_dir"] = self.data_dir
        return Experiment(**fields)

    def _evaluation_interval(self, entrant: Entrant, fields: Mapping[str, Any]) -> int | None:
        """Return the server steps between two evaluations; None for a method in rounds, which evaluates every round.

        All asynchronous methods train the same number of batches between two evaluations. The entrant `limit` trains
        a quarter of this number.
        """
        method = resolve_method(self._make_experiment(fields))
        between: float = self.setting.between
        if entrant.name == LIMIT:
            between /= 4
        elif not method.asynchronous:
            return None
        local, whole = method.local, self.setting.whole
        steps = (
            max(self.setting.sending, int(local.auto.minimum_steps(np.array(whole), self.setting.overlap, size=1.0)))
            if local.auto
            else local.count_steps(whole * local.batch_size)
        )
        batches = steps * getattr(method.update, "size", 1)
        return max(1, round(between / batches))

    def _tuning_folder(self, entrant: Entrant) -> Path:
        return self.folder / self.setting.name / "tuning" / entrant.name

    def _part_folder(self, part: Part) -> Path:
        return self.folder / self.setting.name / part


def _merge_values(fields: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an experiment with tuned values.

    A key of `values` is a field, such as `lr`, or a path in the method, such as `update.gamma`.
    """
    return {**fields, **split_paths(values, fields.get("override", {}))}


def _has_experiment(run: Measured, experiment: Experiment) -> bool:
    return run.fields == identifying_fields(experiment) and has_same_method(run.method, experiment)
