"""The experiments of a comparison, one per method and seed."""

from collections.abc import Mapping, Sequence
from itertools import product
from numbers import Real
from typing import Any

from fedraa.arguments import as_tuple
from fedraa.composition.method import Method
from fedraa.composition.overrides import chosen_value
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.rundir.reserved_directory import run_name
from fedraa.settings.resolve import drop_unused_options
from fedraa.settings.terms import TunedValues, check_schedules, on_terms, tuned_name

DEFAULT_TIME = 20.0


def check_nonempty_and_unique(**chosen: Sequence[object]) -> None:
    """Raise InputError if one of the lists is empty or repeats a value."""
    for field, values in chosen.items():
        different = {value if isinstance(value, Real) else str(value) for value in values}
        if len(different) < max(1, len(values)):
            hint = ""
            if any(isinstance(value, Method) for value in values):
                hint = "give each method a different name: dataclasses.replace(method, name=...)"
            raise InputError(field, got=values, expected="one or more different values", hint=hint)


def _refuse_equal_directories(methods: Sequence[object]) -> None:
    """Raise InputError if the runs of two methods would have the same directory."""
    owners: dict[str, object] = {}
    for method in methods:
        name = run_name(method)
        if name in owners:
            problem = f"{str(owners[name])!r} and {str(method)!r} have the same run directory, {name}-SEED"
            raise InputError("methods", problem, hint="rename one of them: dataclasses.replace(method, name=...)")
        owners[name] = method


def make_experiments(
    methods: Sequence[str | Method] | str | Method,
    seeds: Sequence[int],
    experiment: Experiment,
    terms: str | None = None,
    tuned: TunedValues | None = None,
) -> list[Experiment]:
    """Return an experiment per method and seed.

    Each experiment has only the options that its method uses.

    Args:
        methods: The methods.
        seeds: The seeds.
        experiment: The settings that all methods share.
        terms: The source of the settings that the experiment does not set: equal, paper or tuned.
        tuned: The result of a tuning, which is required if `terms` is tuned.

    Raises InputError for an option that no method uses, for a tuned value that its method does not use, and for a
    method without a time, round or update limit.
    """
    methods = as_tuple("methods", methods, "a list, as ['fed-raa', 'fedavg']", single=(str, Method))
    seeds = as_tuple("seeds", seeds, "a list, as range(3)", single=())
    check_nonempty_and_unique(methods=methods, seeds=seeds)
    _refuse_equal_directories(methods)
    for field, plural in (("method", "methods"), ("seed", "seeds")):
        if experiment.is_set(field):
            raise InputError(field, got=getattr(experiment, field), hint=f"name the {plural} to compare in `{plural}`")
    for method in methods:
        find_method(method)
    if experiment.updates is experiment.rounds is experiment.time is None:
        experiment = experiment.model_copy(update={"time": DEFAULT_TIME})
    filled = [on_terms(experiment.model_copy(update={"method": method}), terms, tuned) for method in methods]
    templates = [drop_unused_options(template) for template in filled]
    _refuse_without_effect(dict(experiment), methods, filled, templates)
    if tuned is not None:
        for settings, template in zip(filled, templates, strict=True):
            _refuse_unused_tuned(settings, template, tuned)
    for template in templates:
        if template.updates is template.rounds is template.time is None:
            raise InputError(
                "updates",
                f"{template.method} has no limit: --updates limits asynchronous methods, and --rounds the others",
                hint="compare at equal --time, or give both --updates and --rounds",
            )
    check_schedules({str(template.method): template for template in templates})
    # `dict` keeps components as objects. `model_dump` would turn them into mappings.
    return [Experiment(**dict(template) | {"seed": seed}) for template, seed in product(templates, seeds)]


def _refuse_without_effect(
    shared: Mapping[str, Any],
    methods: Sequence[object],
    filled: Sequence[Experiment],
    templates: Sequence[Experiment],
) -> None:
    """Raise InputError for a field, or a path of `override`, that no method uses.

    Args:
        shared: The settings that all methods share, by field.
        methods: The methods.
        filled: The settings of each method, with all shared settings.
        templates: The settings of each method, with only the options that the method uses.
    """
    problem = f"it has no effect on {', '.join(map(str, methods))}"
    for field, value in shared.items():
        if value is None or field in ("method", "override"):
            continue
        is_replaced = any(getattr(settings, field) != value for settings in filled)
        if not is_replaced and all(getattr(template, field) != value for template in templates):
            raise InputError(field, problem, got=value, hint=_no_effect_hint(field, value))
    for path, value in shared["override"].items():
        if all(path not in template.override for template in templates):
            raise InputError(path, problem, got=value, hint="leave it out")


def _refuse_unused_tuned(settings: Experiment, template: Experiment, tuned: TunedValues) -> None:
    """Raise InputError for a tuned value that its method does not use.

    Args:
        settings: The settings of the method, with the tuned values.
        template: The settings with only the options that the method uses.
        tuned: The result of the tuning.
    """
    name = tuned_name(settings.method)
    for field in tuned[name]:
        value = chosen_value(settings, field)
        if chosen_value(template, field) != value:
            problem = f"{field}={value} has no effect on {name}"
            raise InputError("tuned", problem, hint="remove it from the file, or tune the method again")


def _no_effect_hint(field: str, value: object) -> str:
    other = {"updates": "rounds", "rounds": "updates"}.get(field)
    if other is None:
        return "leave it out"
    return f"give --{other} {value}: these methods count {other}"
