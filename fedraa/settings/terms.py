"""The terms of a comparison of methods: equal values, the values of each method's paper, or tuned values."""

from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal, get_args

from fedraa.client.local_training import LocalTraining
from fedraa.client.lr_schedule import lr_unit, target_cosine
from fedraa.components.text import text_of
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.overrides import SHORTCUTS, chosen_value
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths
from fedraa.errors import InputError
from fedraa.ledger.participation import PARTICIPATION, Bernoulli, Sample

Terms = Literal["equal", "paper", "tuned"]
TERMS: tuple[str, ...] = get_args(Terms)
TunedValues = Mapping[str, Mapping[str, Any]]
"""Values by method. Each key is a field of an experiment or a path of the method."""

# The option `--terms equal` sets these values.
EQUAL: dict[str, Any] = {
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip": 0.0,
    "weights": "uniform",
    "local_epochs": LocalTraining.epochs,
    "participation": "all",
}


def on_terms(
    experiment: Experiment, terms: str | None, tuned: TunedValues | None = None, *, over: bool = False
) -> Experiment:
    """Return the experiment of one method with the values of the terms: equal, paper or tuned.

    Args:
        experiment: The experiment.
        terms: One of TERMS; None changes nothing.
        tuned: The tuned fields by method, if the terms are `tuned`.
        over: True if the terms replace fields that the experiment sets.

    Raises:
        InputError: The terms set a field that the experiment sets, and `over` is False. Or the method has no values for
            these terms.
    """
    if terms not in (None, *TERMS):
        raise InputError("terms", got=terms, expected=", ".join(TERMS))
    if (terms == "tuned") != (tuned is not None):
        problem = "the file of `fedraa tune` and --terms tuned can be used only together"
        raise InputError("tuned", problem, hint="give both or neither")
    if terms is None:
        return experiment
    method = find_method(experiment.method)
    name = tuned_name(experiment.method)
    if terms == "equal":
        return experiment.model_copy(update=_equal_values(experiment, method))
    if terms == "paper":
        fields = paper_settings(method).fields(experiment.client_count)
        return _set_terms(experiment, fields, f"the paper of {name}", over=over)
    assert tuned is not None
    if name not in tuned:
        raise InputError("tuned", f"it has no values for {name}", hint="tune this method also, or leave it out")
    return _set_terms(experiment, tuned[name], f"the tuned file for {name}", over=over)


def tuned_name(method: object) -> str:
    """Return the name under which the file of `fedraa tune` has the values of a method."""
    if isinstance(method, str):
        return method
    return find_method(method).name


def paper_settings(method: Method) -> PaperSettings:
    """Return the settings of the method's paper. Raises InputError if no paper states them."""
    if method.paper_settings is None:
        raise InputError("terms", f"no paper states the settings of {method.name}", hint="give equal or tuned")
    return method.paper_settings


def check_schedules(experiments: Mapping[str, Experiment]) -> None:
    """Raise InputError if a schedule counts server steps and the methods take different numbers of steps."""
    asynchronous = {find_method(experiment.method).asynchronous for experiment in experiments.values()}
    spec = next(iter(experiments.values())).lr_schedule or "constant"
    same = {experiment.lr_schedule for experiment in experiments.values()} == {spec}
    counts_steps = target_cosine(spec) is None and spec != "constant" and lr_unit(spec) == "steps"
    if same and len(asynchronous) > 1 and counts_steps:
        raise InputError(
            "lr_schedule",
            "it counts server steps, and asynchronous methods take more steps in the same time than synchronous ones",
            got=spec,
            hint=f"give {spec}@time or {spec}@passes, with numbers in this unit",
        )


def _equal_values(experiment: Experiment, method: Method) -> dict[str, Any]:
    """Return the values that `--terms equal` sets, except for fields that the experiment sets."""
    values = {field: value for field, value in EQUAL.items() if chosen_value(experiment, field) is None}
    if experiment.local_steps is not None:
        values.pop("local_epochs", None)
    known = {field: value for field, value in values.items() if field == "local_epochs" or method.path(field)}
    participation = chosen_value(experiment, "participation")
    is_open = method.path("concurrency") is not None and chosen_value(experiment, "concurrency") is None
    if is_open and participation is not None:
        at_a_time = _clients_per_round(participation, experiment.client_count)
        if at_a_time is not None:
            known["concurrency"] = at_a_time
    return known


def _clients_per_round(participation: object, clients: int) -> int | None:
    """Return the number of clients per round, or its expected value; None if it is unknown."""
    drawn = PARTICIPATION.resolve(participation)
    if isinstance(drawn, Sample):
        return drawn.count
    if isinstance(drawn, Bernoulli):
        return max(1, round(drawn.share * clients))
    return None


def _set_terms(experiment: Experiment, values: Mapping[str, Any], origin: str, *, over: bool) -> Experiment:
    """Return the experiment with other values, which are given by field or by path, such as local.momentum.

    `origin` names the source of the values in errors. Raises InputError if the experiment sets a different value and
    `over` is False.
    """
    for name, value in values.items():
        own = chosen_value(experiment, name)
        if own not in (None, value) and not over:
            raise InputError(name, f"{origin} has {text_of(value)}", got=own, hint="leave it out")
    other: dict[str, Any] = {}
    # `local_epochs` and `local_steps` exclude each other.
    if "local_steps" in values or "local_epochs" in values:
        other = {"local_steps": None, "local_epochs": None}
    replaced = set(chain.from_iterable(SHORTCUTS.get(name, ()) for name in values))
    override = {path: value for path, value in experiment.override.items() if path not in replaced}
    return experiment.model_copy(update={**other, "override": override, **split_paths(values, override)})
