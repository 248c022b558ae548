"""The tuner: it runs an equal number of trials for each method on validation data.

The validation data are cut from the clients' training samples. Test data are never used.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from fedraa.api import RUNS, run_name, session
from fedraa.composition.method import Method
from fedraa.composition.overrides import chosen_value, values_by_path
from fedraa.composition.registry import find
from fedraa.config.experiment import Experiment
from fedraa.config.file import check_names
from fedraa.config.overrides import split_paths
from fedraa.data import Dataset, FederatedDataset
from fedraa.data.tree import leaves
from fedraa.engine.build import build
from fedraa.engine.objects import split_objects
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import InputError
from fedraa.objectives import Figures
from fedraa.report.cells import cells
from fedraa.settings.resolve import resolve
from fedraa.settings.tuned import write_tuned
from fedraa.tuning.attempt import Attempt
from fedraa.tuning.folder import tuning_folder
from fedraa.tuning.journal import Journal, Trial
from fedraa.tuning.space import OF_EVERY_METHOD, Parameter, Range, Space, Value, described, make_space
from fedraa.tuning.suggest import Direction, best_of, check_optuna, suggest
from fedraa.tuning.work import refuse_unsendable, work

# Share of every client's training samples, unless the experiment sets another one.
VALIDATION = 0.1
# Share of the trials in the given space. If the best of them is at an edge, the space is widened for the others.
FIRST = 2 / 3
TUNED = "tuned.toml"
Told = Callable[[Trial, int, int, float], None]
Follow = Callable[[Mapping[str, Value]], Mapping[str, object]]


@dataclass(frozen=True, eq=False)
class Tuned:
    """The result of a tuning: `file` for `--terms tuned`, `terms` by method, and a row for every trial."""

    file: Path
    terms: Mapping[str, Mapping[str, object]]
    table: pd.DataFrame
    at_edge: Mapping[str, tuple[str, ...]]
    """By method, the fields whose best value is still at the edge of the space."""
    best: Mapping[str, int]
    """By method, the number of its best trial."""
    untrained: Mapping[str, int]
    """By method, the number of trials that ended before their first update, because the budget is too small."""


def tune(
    methods: Sequence[str | Method] | str | Method,
    space: Mapping[str, object] | Sequence[str],
    trials: int = 12,
    experiment: Experiment | None = None,
    *,
    model: nn.Module | Callable[[int], nn.Module] | str | None = None,
    dataset: Dataset | FederatedDataset | Callable[[], Dataset | FederatedDataset] | Path | str | None = None,
    jobs: int = 1,
    ended: Told | None = None,
    follow: Follow | None = None,
    **fields: object,
) -> Tuned:
    """Find the best values of `space` for each method, with an equal number of trials for each.

    Every trial is a run that is judged by the objective's main metric on validation data. These are a share
    `validation` of each client's training samples, by default a tenth. The test data are not used. A field that only
    some of the methods have is tuned for those.

    Optuna suggests the values. A trial that is worse than the median of earlier ones at the same part of the budget is
    stopped. With a target, the best trial is the one that reaches it first on the run's clock. Two thirds of the trials
    are in the given space. If the best of them is at an edge, the space is widened once for the others.

        tuned = fedraa.tune(["fed-raa", "fedavg"], {"lr": "0.01:1:log"}, trials=12, time=4, jobs=2)
        fedraa.compare(["fed-raa", "fedavg"], time=8, terms="tuned", tuned=tuned.file)

    Args:
        methods: The methods, as in `compare`.
        space: The values of each field, or path of a method: LOW:HIGH, LOW:HIGH:log, or values with commas. Python also
            accepts (LOW, HIGH, "log") and a list.
        trials: The trials of each method.
        experiment: The data, devices, budget and seed, the same for all trials. Its directory `out` (default: one under
            runs/) keeps finished trials, from which the same call continues.
        model: The model, as in `compare`. It must be picklable if `jobs` is over 1.
        dataset: The dataset, as in `compare`. It must be picklable if `jobs` is over 1.
        jobs: The number of concurrent trials: in separate processes, or with `address` on CPUs of a Ray cluster, whose
            nodes have the data. Results are reproducible with one job.
        ended: A function that is called with each finished trial, the number of finished trials, the number of all
            trials, and an estimate of the remaining seconds.
        follow: A function from the values of a trial to further fields of its experiment, such as its evaluation
            interval.
        fields: Fields that replace those of `experiment`.

    Raises ValueError before anything starts if the tuning is impossible, and at the end for a method without a finished
    trial. Raises Interrupted after Ctrl-C.
    """
    module, data, fields = split_objects(model, dataset, fields)
    check_names(fields, Experiment.model_fields)
    experiment = Experiment(**({} if experiment is None else dict(experiment)) | dict(fields))
    for name, count in (("trials", trials), ("jobs", jobs)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(name, got=count, expected="a number from 1")
    objects = _Objects(module, data)
    plan = _Plan.of(methods, make_space(space), trials, experiment, follow, objects)
    if jobs > 1 and experiment.address is None:
        refuse_unsendable(objects.given | {"experiment": plan.experiments})
    check_optuna()
    out = experiment.out or RUNS / f"tune-{Path(plan.dataset).stem}-{experiment.seed}"
    cluster = experiment.model_copy(update={"engine": "ray"}) if experiment.address else None
    ray_cluster = session(cluster, cluster.clients) if cluster else nullcontext()
    with ray_cluster, tuning_folder(out, plan.described()) as folder:
        journal = Journal(folder)
        _work_off(plan, folder, journal, jobs, cluster, ended)
        return _outcome(plan, folder, journal)


@dataclass(frozen=True, eq=False)
class _Objects:
    """The model and the data of all trials, if they are objects."""

    model: nn.Module | None = None
    dataset: Dataset | FederatedDataset | None = None

    @property
    def given(self) -> dict[str, object]:
        """Return the objects that are set, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def described(self, spec: RunSpec) -> dict[str, str]:
        """Return the digests of the objects that are set."""
        data = spec.data.dataset
        arrays = {
            "model": [spec.params],
            "dataset": [part for tree in (data.x_train, data.x_test) for part in leaves(tree)]
            + [data.y_train, data.y_test],
        }
        return {name: _digest(arrays[name]) for name in self.given}


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class _Plan:
    """The plan of a tuning: the experiment and the space of every method."""

    experiments: Mapping[str, Experiment]
    spaces: Mapping[str, Space]
    trials: int
    figures: Figures
    dataset: str
    follow: Follow | None = None
    objects: _Objects = _Objects()
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        methods: Sequence[str | Method] | str | Method,
        space: Space,
        trials: int,
        experiment: Experiment,
        follow: Follow | None = None,
        objects: _Objects = _Objects(),
    ) -> "_Plan":
        for name in space:
            given = chosen_value(experiment, name)
            usual = Experiment.model_fields[name].default if name in Experiment.model_fields else None
            if given not in (None, usual):
                raise InputError(name, "it is in the space as well", got=given, hint="give one of the two")
        share = experiment.validation or VALIDATION
        common = experiment.model_copy(
            update={"validation": share, "seed": 0, "out": None, "quiet": True, "engine": "local", "address": None}
        )
        made = cells(methods, (experiment.seed,), common)
        experiments = {str(each.method): each for each in made}
        spaces = {name: _known(each.method, space) for name, each in experiments.items()}
        for name in space:
            if not any(name in known for known in spaces.values()):
                raise InputError(
                    "space", f"{name} has no effect on any of {', '.join(experiments)}", hint="leave it out"
                )
        for name, each in experiments.items():
            if not spaces[name]:
                raise InputError("space", f"{name} has none of {', '.join(space)}", hint="add a field of this method")
            for tried, parameter in spaces[name].items():
                for value in parameter.ends:
                    resolve(_with(each, {tried: value}))
            spec = build(each, objects.model, objects.dataset)
        own = experiment.dataset if objects.dataset is None else spec.data.dataset.name
        return cls(experiments, spaces, trials, spec.figures, own, follow, objects, objects.described(spec))

    @property
    def better(self) -> Direction:
        return self.figures.better(self.figures.main)

    @property
    def first(self) -> int:
        """The number of a method's trials in the given space."""
        return math.ceil(FIRST * self.trials)

    def described(self) -> dict[str, object]:
        """Return the settings that must be equal when the tuning continues."""
        experiments = {name: each.model_dump(mode="json") for name, each in self.experiments.items()}
        spaces = {name: described(space) for name, space in self.spaces.items()}
        methods = {name: resolve(each).described() for name, each in self.experiments.items()}
        known = {"trials": self.trials, "spaces": spaces, "experiments": experiments, "methods": methods}
        return known | ({"given": dict(self.digests)} if self.digests else {})

    def space(self, method: str, trials: Sequence[Trial]) -> tuple[dict[str, Parameter], tuple[str, ...]]:
        """Return the method's space for its last trials and the names of the widened fields."""
        if self.trials == self.first:
            return dict(self.spaces[method]), ()
        best = best_of([trial for trial in trials if trial.number < self.first], self.better)
        space, widened = dict(self.spaces[method]), []
        for name, parameter in space.items():
            wider = None if best is None else self.beyond(method, name, parameter, best.values[name])
            if wider is not None:
                space[name] = wider
                widened.append(name)
        return space, tuple(widened)

    def beyond(self, method: str, name: str, parameter: Parameter, value: Value) -> Parameter | None:
        """Return a wider parameter if this value is at an edge and the wider one can run; else None.

        Args:
            method: The name of the method.
            name: The name of the field.
            parameter: The range or the choices of the field.
            value: The best value of the field.
        """
        side = parameter.edge(value)
        wider = parameter.widened(side) if side else parameter
        can = wider != parameter and self._can(method, {name: wider.ends[-1 if side > 0 else 0]})
        return wider if can else None

    def _can(self, method: str, values: Mapping[str, object]) -> bool:
        """Return True if the method can run with these values."""
        try:
            resolve(_with(self.experiments[method], values))
        except ValueError:
            return False
        return True

    def next(self, method: str, number: int, journal: Journal, folder: Path) -> Attempt:
        """Return the trial of that number, planned from the finished ones.

        Args:
            method: The name of the method.
            number: The index of the trial.
            journal: The finished trials.
            folder: The directory of the tuning.
        """
        ended, experiment = journal.of(method), self.experiments[method]
        space = self.spaces[method] if number < self.first else self.space(method, ended)[0]
        values = suggest(space, ended, experiment.seed, number, self.better)
        more = dict(self.follow(values)) if self.follow else {}
        more["out"] = folder / run_name(method, number)
        return Attempt(
            method,
            number,
            values,
            _with(experiment, values | more),
            tuple(ended),
            self.better,
            self.objects.model,
            self.objects.dataset,
        )


def _known(method: object, space: Space) -> dict[str, Parameter]:
    """Return the parameters of the space that the method has."""
    made = find(method)
    values = values_by_path(made)
    known = dict[str, Parameter]()
    for name, parameter in space.items():
        if isinstance(parameter, Range) and isinstance(values.get(name), float):
            parameter = Range(float(parameter.low), float(parameter.high), parameter.log)
        if name in OF_EVERY_METHOD or made.path(name) is not None:
            known[name] = parameter
    return known


def _with(experiment: Experiment, values: Mapping[str, object]) -> Experiment:
    other = {"local_epochs": None} if "local_steps" in values else {}
    return Experiment(**dict(experiment) | other | split_paths(values, experiment.override))


def _work_off(
    plan: _Plan, folder: Path, journal: Journal, jobs: int, cluster: Experiment | None, ended: Told | None
) -> None:
    """Run all trials that have not ended: those in the given spaces first, then those in the widened ones."""
    total, before, started = plan.trials * len(plan.experiments), len(journal.trials), time.monotonic()
    for numbers in (range(plan.first), range(plan.first, plan.trials)):
        had = {(trial.method, trial.number) for trial in journal.trials}
        left = [(name, n) for n in numbers for name in plan.experiments if (name, n) not in had]
        for trial in work(
            left,
            lambda name, n: plan.next(name, n, journal, folder),
            journal,
            jobs,
            cluster,
            list(plan.objects.given.values()),
        ):
            count = len(journal.trials)
            rest = (time.monotonic() - started) / (count - before) * (total - count)
            if ended is not None:
                ended(trial, count, total, rest)


def _outcome(plan: _Plan, folder: Path, journal: Journal) -> Tuned:
    told, edges, bests = dict[str, dict[str, Any]](), dict[str, tuple[str, ...]](), dict[str, Trial]()
    untrained = {method: sum(trial.steps == 0 for trial in journal.of(method)) for method in plan.experiments}
    for method in plan.experiments:
        trials = journal.of(method)
        best = best_of(trials, plan.better)
        if best is None:
            raise InputError(method, f"no trial has ended: {trials[-1].why or 'all were given up'}")
        bests[method] = best
        space, widened = plan.space(method, trials)
        edges[method] = tuple(
            name for name, value in best.values.items() if plan.beyond(method, name, space[name], value) is not None
        )
        states = [trial.state for trial in trials]
        told[method] = {
            "value": best.value,
            **({} if best.reached is None else {"reached": best.reached}),
            "trial": best.number,
            "stopped": states.count("stopped"),
            "failed": states.count("failed"),
            "widened": list(widened),
            "at_edge": list(edges[method]),
            "terms": dict(best.values),
        }
    first = next(iter(plan.experiments.values()))
    about = {
        "format": 1,
        "dataset": plan.dataset,
        "figure": plan.figures.main,
        "better": plan.better,
        "trials": plan.trials,
        "seed": first.seed,
        "validation": first.validation,
    }
    path = folder / TUNED
    write_tuned(path, about, told)
    rows = [
        {"method": t.method, "trial": t.number, "state": t.state, plan.figures.main: t.value, **t.values}
        for t in sorted(journal.trials, key=lambda trial: (trial.number, list(plan.experiments).index(trial.method)))
    ]
    terms = {method: dict(best.values) for method, best in bests.items()}
    numbers = {method: best.number for method, best in bests.items()}
    return Tuned(path, terms, pd.DataFrame(rows), edges, numbers, untrained)
