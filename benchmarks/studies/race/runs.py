"""What is run in a setting, in its order: tuning, five seeds at the tuned values, the defaults, and once for long.

Each is a folder below the setting's, and each can be gone on with: trials and runs that have ended are not made again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from benchmarks.studies.metrics import ACCURACY
from benchmarks.studies.race.entrants import ENTRANTS, KNOWN, LIMIT, ROUNDS, Entrant
from benchmarks.studies.race.measures import Measured, known_by, measured
from benchmarks.studies.race.settings import Setting
from benchmarks.studies.study import Cell, Finished, Study, ended, execute, seeded, unchanged
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths
from fedraa.errors import InputError
from fedraa.settings.resolve import resolve
from fedraa.settings.tuned import read_tuned
from fedraa.tuning import tuner
from fedraa.tuning.journal import Trial

Part = Literal["tuned", "untuned", "long"]
PARTS: tuple[Part, ...] = get_args(Part)
TUNING_SEED = 1000  # which no run that is shown has
LONG = 5  # times FedAvg's time to its last target
TRIED = 0.6  # of the horizon is the time of a trial
CIFAR = "cifar10-subset"  # a file among the data, and no name of a dataset
Told = Callable[[str], None]


@dataclass(frozen=True)
class Race:
    """One setting's runs below `folder`, `jobs` at a time.

    Who is among the `given` values is not tuned, and what is among the `recorded` runs is not made again.
    """

    setting: Setting
    folder: Path
    data_dir: Path | None
    seeds: tuple[int, ...]
    jobs: int = 1
    given: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    recorded: Sequence[Measured] = ()

    def __post_init__(self) -> None:
        if self.setting.fields["dataset"] == CIFAR and self.data_dir is None:
            raise InputError("data_dir", f"the race cifar10 needs {CIFAR}.npz", hint="give the folder that it is in")

    def tune(self, entrant: Entrant, told: Told) -> None:
        """As many trials of it as of all others; the best is the first one at what is aimed at, on validation data."""
        if entrant.name in self.given or self._recorded_values(entrant) is not None:
            return

        def ended(trial: Trial, count: int, total: int, left: float) -> None:
            when = trial.state if trial.reached is None else f"at the target at {trial.reached:.3g}"
            told(f"{entrant.name}: trial {count} of {total} {when}, {trial.seconds:.0f} s")

        def evaluated(values: Mapping[str, object]) -> dict[str, object]:
            return {"eval_every": self._evaluations(entrant, _with(entrant.fields(self.setting), values))}

        fields = entrant.fields(self.setting)
        method = fields.pop("method")
        tuner.tune(
            [method],
            entrant.space(self.setting),
            self.setting.trials,
            self._experiment(fields),
            jobs=self.jobs,
            ended=ended,
            follow=evaluated,
            out=self._tuning(entrant),
            seed=TUNING_SEED,
            target_accuracy=self.setting.aimed_at,
            time=TRIED * self.setting.horizon,
        )

    def values(self, entrant: Entrant) -> dict[str, Any] | None:
        """The tuned ones; None if it is not yet tuned."""
        if entrant.name in self.given:
            return self.given[entrant.name]
        file = self._tuning(entrant) / tuner.TUNED
        return read_tuned(file)[entrant.method()] if file.is_file() else self._recorded_values(entrant)

    def _recorded_values(self, entrant: Entrant) -> dict[str, Any] | None:
        """Those with which its recorded runs were made, which no file of tuned values has if parts of ours are lent."""
        tuned = (run.fields for run in self.recorded if (run.entrant, run.part) == (entrant.name, "tuned"))
        fields = next(tuned, None)
        if fields is None:
            return None
        recorded = {**fields, **fields.get("override", {})}
        return {name: recorded[name] for name in entrant.space(self.setting) if name in recorded}

    def cell(self, entrant: Entrant, part: Part) -> Cell | None:
        """The experiment of this part of the race; None if there is none, or none before others have ended."""
        values = {} if part == "untuned" else self.values(entrant)
        if values is None or (entrant.name == LIMIT and part != "tuned") or entrant.refusal(self.setting) is not None:
            return None
        fields = _with(entrant.fields(self.setting), values)
        every = self._evaluations(entrant, fields)
        ends: dict[str, Any] = {"target_accuracy": self.setting.targets[-1], "time": self.setting.horizon}
        if part == "long":
            if (time := self.long_time()) is None:
                return None
            ends, every = {"time": time}, None if every is None else LONG * every
        return Cell(entrant.name, self._experiment(fields | ends | {"eval_every": every}), part)

    def long_time(self) -> float | None:
        """LONG times FedAvg's mean time to the last target that all its seeds are at; None before they have run."""
        runs = self._measured("tuned", [ENTRANTS[ROUNDS]])
        if len(runs) < len(self.seeds):
            return None
        times = [[run.times[level] for run in runs] for level in reversed(self.setting.targets)]
        there = next((each for each in times if max(each) <= self.setting.horizon), None)
        return None if there is None else float(f"{LONG * sum(there) / len(there):.3g}")

    def run(self, entrants: Sequence[Entrant], part: Part, watch: Callable[[Finished, int], None]) -> None:
        """All seeds of these entrants, as far as they can be run now and are not recorded: seed by seed."""
        cells = [cell for entrant in entrants if (cell := self.cell(entrant, part)) is not None]
        left = {(cell.row, seed) for cell in cells for seed in self.seeds if self._found(cell, seed) is None}
        if left:
            study = self._study(cells)
            execute(study, self._part(part), self.jobs, watch, lambda cell, seed: (cell.row, seed) in left)

    def measured(self) -> list[Measured]:
        """Every run that has ended, of those that are asked for; part by part, in the entrants' order."""
        return [run for part in ("tuned", "untuned") for run in self._measured(part)]

    def long(self) -> list[Measured]:
        return self._measured("long")

    def _measured(self, part: Part, entrants: Iterable[Entrant] = KNOWN.values()) -> list[Measured]:
        found = []
        for entrant in entrants:
            if (cell := self.cell(entrant, part)) is None:
                continue
            found += [run for seed in self.seeds if (run := self._found(cell, seed)) is not None]
        return found

    def _found(self, cell: Cell, seed: int) -> Measured | None:
        """The cell's run with this seed, if it has ended: that of its directory, or the recorded one."""
        part = cast(Part, cell.column)
        experiment = seeded(cell, seed, self._part(part))
        if ended(experiment):
            return measured(cell.row, part, experiment, self.setting.targets)
        same = (run for run in self.recorded if (run.entrant, run.part, run.seed) == (cell.row, part, seed))
        return next((run for run in same if _made_of(run, experiment)), None)

    def strange(self) -> list[Measured]:
        """The recorded runs that are not what would be run today: of other values, or of what a method was before."""
        found = []
        for run in self.recorded:
            cell = self.cell(KNOWN[run.entrant], cast(Part, run.part))
            if cell is None or not _made_of(run, seeded(cell, run.seed, self.folder)):
                found.append(run)
        return found

    def _study(self, cells: Sequence[Cell]) -> Study:
        return Study(self.setting.name, self.setting.title, cells, (ACCURACY,), cells[0].row, seeds=self.seeds)

    def _experiment(self, fields: Mapping[str, Any]) -> Experiment:
        fields = dict(fields)
        if fields["dataset"] == CIFAR and self.data_dir is not None:
            fields["dataset"] = str(self.data_dir / f"{CIFAR}.npz")
        elif fields["dataset"] != "digits":
            fields["data_dir"] = self.data_dir
        return Experiment(**fields)

    def _evaluations(self, entrant: Entrant, fields: Mapping[str, Any]) -> int | None:
        """Updates between two evaluations, so that a target is not seen late; rounds are evaluated one by one.

        An update is one arrival, or as many as a buffer has.
        """
        method = resolve(self._experiment(fields))
        if not method.asynchronous and entrant.name != LIMIT:
            return None
        local, whole = method.local, self.setting.whole
        steps = int(local.auto.shortest(np.array(whole))) if local.auto else local.batches(whole * local.batch_size)
        batches = steps * getattr(method.update, "size", 1)
        return max(1, round(self.setting.between / (4 if entrant.name == LIMIT else 1) / batches))

    def _tuning(self, entrant: Entrant) -> Path:
        return self.folder / self.setting.name / "tuning" / entrant.name

    def _part(self, part: Part) -> Path:
        return self.folder / self.setting.name / part


def _with(fields: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an experiment with these tuned fields and paths."""
    return {**fields, **split_paths(values, fields.get("override", {}))}


def _made_of(run: Measured, experiment: Experiment) -> bool:
    return run.fields == known_by(experiment) and unchanged(run.method, experiment)
