"""The runs of a comparison: one experiment per method and seed, each with the flags that its method knows."""

from collections.abc import Sequence
from typing import Any

from fedraa.composition.method import Method
from fedraa.composition.registry import find
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.settings.resolve import without_foreign_flags
from fedraa.settings.terms import Tuned, check_schedules, on_terms

DEFAULT_TIME = 20.0


def as_several(field: str, given: Any, example: str) -> tuple[Any, ...]:
    """Return the values of a field that takes a list; one value is allowed without a list.

    Args:
        field: The name of the field, for an error.
        given: The value.
        example: A correct value, for an error.
    """
    if isinstance(given, str | Method):
        return (given,)
    try:
        return tuple(given)
    except TypeError:
        raise InputError(field, got=given, expected=f"a list, as {example}") from None


def check_each_once(**chosen: Sequence[object]) -> None:
    """Raise InputError for a flag without a value, or with one value twice."""
    for field, values in chosen.items():
        if not values or len({str(value) for value in values}) < len(values):
            named = "give each a different name: dataclasses.replace(method, name=...)"
            objects = any(isinstance(value, Method) for value in values)
            raise InputError(field, got=values, expected="one or more, each once", hint=named * objects)


def cells(
    methods: Sequence[str | Method] | str | Method,
    seeds: Sequence[int],
    experiment: Experiment,
    terms: str | None = None,
    tuned: Tuned | None = None,
) -> list[Experiment]:
    """Return an experiment per method and seed, with a budget and the flags of its method.

    Args:
        methods: The methods.
        seeds: The seeds.
        experiment: The settings that all methods share.
        terms: The source of settings that the experiment leaves open: equal, paper or tuned.
        tuned: The result of a tuning, for tuned terms.

    Raises InputError for a flag that has no effect on any method, or for methods whose steps cannot be compared.
    """
    methods = as_several("methods", methods, "['fed-raa', 'fedavg']")
    seeds = as_several("seeds", seeds, "range(3)")
    check_each_once(methods=methods, seeds=seeds)
    for field, instead in (("method", "methods"), ("seed", "seeds")):
        if (given := getattr(experiment, field)) != Experiment.model_fields[field].default:
            raise InputError(field, got=given, hint=f"name the {instead} to compare in `{instead}`")
    for method in methods:
        find(method)
    if experiment.updates is experiment.rounds is experiment.time is None:
        experiment = experiment.model_copy(update={"time": DEFAULT_TIME})
    own = [on_terms(experiment.model_copy(update={"method": method}), terms, tuned) for method in methods]
    templates = [without_foreign_flags(each) for each in own]
    for field, value in experiment:
        own_ones = any(getattr(each, field) != value for each in own)
        if (
            value is not None
            and field not in ("method", "override")
            and not own_ones
            and all(getattr(each, field) != value for each in templates)
        ):
            raise InputError(
                field, f"it has no effect on {', '.join(map(str, methods))}", got=value, hint=_instead(field, value)
            )
    for path, value in experiment.override.items():
        if all(path not in each.override for each in templates):
            problem = f"it has no effect on {', '.join(map(str, methods))}"
            raise InputError(path, problem, got=value, hint="leave it out")
    for each in templates:
        if each.updates is each.rounds is each.time is None:
            raise InputError(
                "updates",
                f"{each.method} counts its steps in another unit",
                hint="compare at equal --time, or give both --updates and --rounds",
            )
    check_schedules({str(each.method): each for each in templates})
    # `model_dump` would turn components that are dataclasses into mappings.
    return [Experiment(**dict(each) | {"seed": seed}) for each in templates for seed in seeds]


def _instead(field: str, value: object) -> str:
    """Return the next step for a field that no method has."""
    other = {"updates": "rounds", "rounds": "updates"}.get(field)
    return "leave it out" if other is None else f"what is compared counts {other}: --{other} {value}"
