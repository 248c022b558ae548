"""The tuner. It runs the same number of trials for each method, and evaluates them on validation data."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from fedraa.api import RUNS, open_calls, open_session
from fedraa.arguments import check_functions
from fedraa.composition.method import Method
from fedraa.composition.overrides import chosen_value, values_by_path
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment, with_fields
from fedraa.config.overrides import split_paths
from fedraa.data import Dataset, FederatedDataset
from fedraa.engine.build import build_run
from fedraa.engine.objects import split_objects
from fedraa.errors import InputError
from fedraa.objectives import MetricSpec
from fedraa.objectives.metric_spec import Direction
from fedraa.report.cells import make_experiments
from fedraa.rundir.reserved_directory import run_name
from fedraa.settings.resolve import resolve_method
from fedraa.settings.tuned import write_tuned
from fedraa.tuning.attempt import Attempt
from fedraa.tuning.folder import describe_template, tuning_folder
from fedraa.tuning.journal import Journal, Trial
from fedraa.tuning.objects import TrialObjects
from fedraa.tuning.space import OF_EVERY_METHOD, Parameter, Range, Space, Value, describe_space, make_space
from fedraa.tuning.suggest import best_of, check_optuna, suggest_values
from fedraa.tuning.work import OpenNodes, refuse_unsendable, run_trials

# The default fraction of every client's training samples for validation.
VALIDATION = 0.1
# After this fraction of the trials, the space becomes wider if the best trial is at an edge of the space.
FIRST_FRACTION = 2 / 3
TUNED = "tuned.toml"
MAX_TRIALS = 1_000_000
OnTrial = Callable[[Trial, int, int, float], None]
Follow = Callable[[Mapping[str, Value]], Mapping[str, object]]


@dataclass(frozen=True, eq=False)
class Tuned:
    """The result of a tuning.

    Attributes:
        file: The file for `--terms tuned`.
        terms: The best values of each method.
        table: A row for every trial.
        at_edge: For each method, the fields whose best value is at an edge of the space that the trials have tried.
        best: For each method, the number of its best trial.
        untrained: For each method, the number of trials that ended before their first update.
    """

    file: Path
    terms: Mapping[str, Mapping[str, object]]
    table: pd.DataFrame
    at_edge: Mapping[str, tuple[str, ...]]
    best: Mapping[str, int]
    untrained: Mapping[str, int]


def tune(  # noqa: PLR0913 - a call names its arguments
    methods: Sequence[str | Method] | str | Method,
    space: Mapping[str, object] | Sequence[str],
    trials: int = 12,
    experiment: Experiment | None = None,
    *,
    model: nn.Module | Callable[[int], nn.Module] | str | None = None,
    dataset: Dataset | FederatedDataset | Callable[[], Dataset | FederatedDataset] | Path | str | None = None,
    jobs: int = 1,
    ended: OnTrial | None = None,
    follow: Follow | None = None,
    **fields: object,
) -> Tuned:
    """Find the best values of `space` for each method, with an equal number of trials for each.

    Every trial is a run. The best trial has the best main metric on validation data, by default a tenth of each
    client's training samples. With a target, the best trial reaches it first on the run's clock. A field is tuned only
    for methods that have it.

    Optuna suggests the values, and stops a trial that is worse than the median of the finished trials. If the best of
    the first two thirds of the trials is at an edge of the space, the last third uses a wider space.

        tuned = fedraa.tune(["fed-raa", "fedavg"], {"lr": "0.01:1:log"}, trials=12, time=4, jobs=2)
        fedraa.compare(["fed-raa", "fedavg"], time=8, terms="tuned", tuned=tuned.file)

    Args:
        methods: The methods, as in `compare`.
        space: The values of each field or path: "LOW:HIGH", "LOW:HIGH:log", "A,B,C", (LOW, HIGH, "log") or a list.
        trials: Number of trials of each method.
        experiment: The settings of all trials. `out` keeps finished trials, so that the same call continues.
        model: As in `compare`. It must be picklable if `jobs` is over 1.
        dataset: As in `compare`. It must be picklable if `jobs` is over 1.
        jobs: Number of trials at the same time, in processes or (with `address`) on CPUs of a cluster. Only with one
            job is the result reproducible.
        ended: Called with a finished trial, the numbers of finished and of all trials, and the remaining seconds.
        follow: A function that gets a trial's values and returns further fields of its experiment.
        **fields: Fields that replace the fields of `experiment`.

    Raises InputError before the first trial if the tuning is impossible, and at the end for a method without a result.
    """
    module, data, fields = split_objects(model, dataset, fields)
    experiment = with_fields(experiment, fields)
    check_functions(ended=ended, follow=follow)
    for name, count in (("trials", trials), ("jobs", jobs)):
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_TRIALS:
            raise InputError(name, got=count, expected=f"a whole number from 1 to {MAX_TRIALS}")
    objects = TrialObjects(module, data)
    plan = _Plan.of(methods, make_space(space), trials, experiment, follow, objects)
    if jobs > 1 and experiment.address is None:
        refuse_unsendable(objects.by_name() | {"experiment": plan.experiments})
    check_optuna()
    out = experiment.out or RUNS / f"tune-{Path(plan.dataset).stem}-{experiment.seed}"
    open_nodes: OpenNodes | None = None
    ray_cluster: AbstractContextManager[object] = nullcontext()
    if experiment.address:
        cluster = experiment.model_copy(update={"engine": "ray"})
        ray_cluster = open_session(cluster, cluster.client_count)
        sent = [cluster, *objects.by_name().values()]
        open_nodes = partial(open_calls, cluster, cluster.client_count, sent)
    with ray_cluster, tuning_folder(out, plan.described()) as folder:
        journal = Journal(folder)
        _run_unfinished(plan, folder, journal, jobs, open_nodes, ended)
        return _write_result(plan, folder, journal)


@dataclass(frozen=True)
class _Plan:
    """The plan of a tuning: the experiment and the space of every method."""

    experiments: Mapping[str, Experiment]
    spaces: Mapping[str, Space]
    trials: int
    metric_spec: MetricSpec
    dataset: str
    follow: Follow | None = None
    objects: TrialObjects = field(default_factory=TrialObjects)
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        methods: Sequence[str | Method] | str | Method,
        space: Space,
        trials: int,
        experiment: Experiment,
        follow: Follow | None = None,
        objects: TrialObjects | None = None,
    ) -> "_Plan":
        """Return the plan. Raise InputError if a method cannot run with the values at the ends of its space.

        Args:
            methods: The methods.
            space: The search space.
            trials: Number of trials of each method.
            experiment: The settings that all trials share.
            follow: A function that gets a trial's values and returns further fields of its experiment.
            objects: The model and the data of all trials.
        """
        _refuse_fixed(space, experiment)
        objects = objects or TrialObjects()
        fixed = {"validation": experiment.validation or VALIDATION, "seed": 0, "out": None, "quiet": True}
        in_one_process = {"engine": "local", "workers": None, "address": None}
        common = experiment.model_copy(update=fixed | in_one_process)
        experiments = {
            str(template.method): template for template in make_experiments(methods, (experiment.seed,), common)
        }
        spaces = {method: _known_parameters(template.method, space) for method, template in experiments.items()}
        for name in space:
            if not any(name in known for known in spaces.values()):
                problem = f"{name} has no effect on any of {', '.join(experiments)}"
                raise InputError("space", problem, hint="leave it out")
        for method, template in experiments.items():
            if not spaces[method]:
                problem = f"{method} has none of the fields {', '.join(space)}"
                raise InputError("space", problem, hint="add a field of this method")
            for name, parameter in spaces[method].items():
                for value in parameter.ends:
                    resolve_method(_replace_values(template, {name: value}))
            spec = build_run(template, objects.model, objects.dataset)
        dataset = experiment.dataset if objects.dataset is None else spec.data.dataset.name
        return cls(
            experiments, spaces, trials, spec.metric_spec, dataset, follow, objects, objects.digest_objects(spec)
        )

    @property
    def better(self) -> Direction:
        return self.metric_spec.better(self.metric_spec.main)

    @property
    def first(self) -> int:
        """The number of a method's trials before its space may become wider."""
        return math.ceil(FIRST_FRACTION * self.trials)

    def described(self) -> dict[str, object]:
        """Return the settings that an interrupted tuning must keep to continue."""
        settings: dict[str, object] = {
            "trials": self.trials,
            "spaces": {method: describe_space(space) for method, space in self.spaces.items()},
            "experiments": {method: describe_template(template) for method, template in self.experiments.items()},
            "methods": {method: resolve_method(template).described() for method, template in self.experiments.items()},
        }
        if self.digests:
            settings["given"] = dict(self.digests)
        return settings

    def space(self, method: str, trials: Sequence[Trial]) -> tuple[dict[str, Parameter], tuple[str, ...]]:
        """Return the wider space of a method's later trials, and the names of the widened fields."""
        space = dict(self.spaces[method])
        widened = []
        best = best_of([trial for trial in trials if trial.number < self.first], self.better)
        if best is None or self.trials == self.first:
            return space, ()
        for name, parameter in self.spaces[method].items():
            wider = self.widen_parameter(method, name, parameter, best.values[name])
            if wider is not None:
                space[name] = wider
                widened.append(name)
        return space, tuple(widened)

    def tried_space(self, method: str, trials: Sequence[Trial]) -> dict[str, Parameter]:
        """Return a method's space. A parameter is only wider if a trial had a value that is not in the original one."""
        space, _ = self.space(method, trials)
        for name, parameter in self.spaces[method].items():
            if all(parameter.contains(trial.values[name]) for trial in trials):
                space[name] = parameter
        return space

    def widen_parameter(self, method: str, name: str, parameter: Parameter, value: Value) -> Parameter | None:
        """Return a wider parameter, or None.

        None means that the value is not at an edge of the range, or that the method refuses the new edge.

        Args:
            method: The name of the method.
            name: The name of the field.
            parameter: The range or the choices of the field.
            value: The best value of the field.
        """
        side = parameter.edge_side(value)
        if side == 0:
            return None
        wider = parameter.widen_side(side)
        new_end = wider.ends[-1 if side > 0 else 0]
        if wider == parameter or not self._can_run(method, {name: new_end}):
            return None
        return wider

    def _can_run(self, method: str, values: Mapping[str, object]) -> bool:
        try:
            resolve_method(_replace_values(self.experiments[method], values))
        except ValueError:
            return False
        return True

    def next(self, method: str, number: int, journal: Journal, folder: Path) -> Attempt:
        """Return the plan of a trial. The values of the trial depend on the finished trials.

        Args:
            method: The name of the method.
            number: The index of the trial.
            journal: The finished trials.
            folder: The directory of the tuning.
        """
        ended = journal.of(method)
        experiment = self.experiments[method]
        space = self.spaces[method]
        if number >= self.first:
            space, _ = self.space(method, ended)
        values = suggest_values(space, ended, experiment.seed, number, self.better)
        fields: dict[str, object] = dict(values)
        if self.follow is not None:
            fields |= self.follow(values)
        fields["out"] = folder / run_name(method, number)
        return Attempt(
            method=method,
            number=number,
            values=values,
            experiment=_replace_values(experiment, fields),
            ended=tuple(ended),
            better=self.better,
            model=self.objects.model,
            dataset=self.objects.dataset,
        )


def _refuse_fixed(space: Space, experiment: Experiment) -> None:
    """Raise InputError if the experiment sets a field that the search varies."""
    for name in space:
        value = chosen_value(experiment, name)
        if value is not None:
            raise InputError(name, "it is also in the search space", got=value, hint="give it once")


def _known_parameters(method: object, space: Space) -> dict[str, Parameter]:
    """Return the parameters of the space that the method has."""
    resolved = find_method(method)
    values = values_by_path(resolved)
    known: dict[str, Parameter] = {}
    for name, parameter in space.items():
        if isinstance(parameter, Range) and isinstance(values.get(name), float):
            parameter = Range(float(parameter.low), float(parameter.high), parameter.log)
        if name in OF_EVERY_METHOD or resolved.path(name) is not None:
            known[name] = parameter
    return known


def _replace_values(experiment: Experiment, values: Mapping[str, object]) -> Experiment:
    fields = dict(experiment)
    # An experiment cannot have both local steps and local epochs.
    if "local_steps" in values:
        fields["local_epochs"] = None
    return Experiment(**fields | split_paths(values, experiment.override))


def _run_unfinished(
    plan: _Plan, folder: Path, journal: Journal, jobs: int, open_nodes: OpenNodes | None, ended: OnTrial | None
) -> None:
    """Run the unfinished trials: first those in the original spaces, then those in the wider spaces."""
    total = plan.trials * len(plan.experiments)
    before = len(journal.trials)
    started = time.monotonic()
    for numbers in (range(plan.first), range(plan.first, plan.trials)):
        finished = {(trial.method, trial.number) for trial in journal.trials}
        all_trials = [(method, number) for number, method in product(numbers, plan.experiments)]
        left = [trial_key for trial_key in all_trials if trial_key not in finished]
        next_attempt = partial(plan.next, journal=journal, folder=folder)
        for trial in run_trials(left, next_attempt, journal, jobs, open_nodes):
            count = len(journal.trials)
            remaining_s = (time.monotonic() - started) / (count - before) * (total - count)
            if ended is not None:
                ended(trial, count, total, remaining_s)


def _write_result(plan: _Plan, folder: Path, journal: Journal) -> Tuned:
    results: dict[str, dict[str, Any]] = {}
    edges: dict[str, tuple[str, ...]] = {}
    failures: dict[str, str] = {}
    untrained = {method: sum(trial.steps == 0 for trial in journal.of(method)) for method in plan.experiments}
    for method in plan.experiments:
        trials = journal.of(method)
        best = best_of(trials, plan.better)
        if best is None:
            failures[method] = trials[-1].why
            continue
        _, widened = plan.space(method, trials)
        space = plan.tried_space(method, trials)
        edges[method] = tuple(
            name
            for name, value in best.values.items()
            if plan.widen_parameter(method, name, space[name], value) is not None
        )
        states = [trial.state for trial in trials]
        results[method] = {
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
        "metric": plan.metric_spec.main,
        "better": plan.better,
        "trials": plan.trials,
        "seed": first.seed,
        "validation": first.validation,
    }
    path = folder / TUNED
    if results:
        write_tuned(path, about, results)
    for method, reason in failures.items():
        hint = f"{path} has the values of the other methods" if results else "give other values in the space"
        raise InputError(method, f"no trial has finished: {reason}", hint=hint)
    methods = list(plan.experiments)
    rows = [
        {"method": trial.method, "trial": trial.number, "state": trial.state, plan.metric_spec.main: trial.value}
        | dict(trial.values)
        for trial in sorted(journal.trials, key=lambda trial: (trial.number, methods.index(trial.method)))
    ]
    terms = {method: result["terms"] for method, result in results.items()}
    numbers = {method: result["trial"] for method, result in results.items()}
    return Tuned(path, terms, pd.DataFrame(rows), edges, numbers, untrained)
