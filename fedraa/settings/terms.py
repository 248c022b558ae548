"""On which terms methods are compared: equal ones, those of each one's paper, or those that were tuned for each."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from fedraa.client.local_training import Solver
from fedraa.client.lr_schedule import lr_unit
from fedraa.components.text import text_of
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import find
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError, short_text
from fedraa.ledger.participation import PARTICIPATION, Bernoulli, Sample

Terms = Literal["equal", "paper", "tuned"]
TERMS: tuple[str, ...] = get_args(Terms)
Tuned = Mapping[str, Mapping[str, Any]]
"""Fields of an experiment by method."""

# What is one for all methods on equal terms, unless the experiment says another: what every one of them can do.
EQUAL: dict[str, Any] = {
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip": 0.0,
    "weights": "uniform",
    "local_epochs": Solver.epochs,
    "participation": "all",
}


def on_terms(
    experiment: Experiment, terms: str | None, tuned: Tuned | None = None, *, over: bool = False
) -> Experiment:
    """The experiment of one method on these terms; None: as its flags, and the method itself, have it.

    With `over` the terms win over fields that the experiment sets, which are refused otherwise. Raises ValueError, one
    sentence, for such fields, and for a method of which nobody has stated or found terms.
    """
    if terms not in (None, *TERMS):
        raise ValueError(f"terms: got {short_text(terms)}; takes {', '.join(TERMS)}")
    if (terms == "tuned") != (tuned is not None):
        raise ValueError("tuned: the file of `fedraa tune` and --terms tuned need each other; give both or neither")
    if terms is None:
        return experiment
    method = find(experiment.method)
    name = experiment.method if isinstance(experiment.method, str) else method.name
    if terms == "equal":
        return experiment.model_copy(update=_equal(experiment, method))
    if terms == "paper":
        fields = paper_settings(method).fields(experiment.clients)
        return _with(experiment, fields, f"the paper of {name}", over=over)
    assert tuned is not None
    if name not in tuned:
        raise ValueError(f"tuned: nothing was tuned for {name}; tune it, too, or leave it out")
    return _with(experiment, tuned[name], f"what was tuned for {name}", over=over)


def paper_settings(method: Method) -> PaperSettings:
    """Return the settings of the method's paper. Raises InputError for a method without any."""
    if method.paper_settings is None:
        raise InputError("terms", f"no paper states the settings of {method.name}", hint="give equal or tuned")
    return method.paper_settings


def check_schedules(experiments: Mapping[str, Experiment]) -> None:
    """ValueError if a learning rate falls with server steps, and these methods count them otherwise."""
    asynchronous = {find(experiment.method).asynchronous for experiment in experiments.values()}
    spec = next(iter(experiments.values())).lr_schedule
    same = {experiment.lr_schedule for experiment in experiments.values()} == {spec}
    if same and len(asynchronous) > 1 and spec != "constant" and lr_unit(spec) == "steps":
        raise ValueError(
            f"lr_schedule: {spec} counts server steps, of which rounds have few and arrivals many in equal time; give "
            f"it as {spec}@time or {spec}@passes, with numbers to suit"
        )


def _equal(experiment: Experiment, method: Method) -> dict[str, Any]:
    values = {field: value for field, value in EQUAL.items() if getattr(experiment, field) is None}
    if experiment.local_steps is not None:
        values.pop("local_epochs", None)
    known = {field: value for field, value in values.items() if field == "local_epochs" or method.path(field)}
    at_a_time = _at_a_time(experiment) if method.path("concurrency") else None
    return known if at_a_time is None else known | {"concurrency": at_a_time}


def _at_a_time(experiment: Experiment) -> int | None:
    """As many clients as take part in a round, for a method without rounds."""
    if experiment.concurrency is not None or experiment.participation is None:
        return None
    drawn = PARTICIPATION.make(experiment.participation)
    if isinstance(drawn, Sample):
        return drawn.count
    return max(1, round(drawn.share * experiment.clients)) if isinstance(drawn, Bernoulli) else None


def _with(experiment: Experiment, values: Mapping[str, Any], whose: str, *, over: bool) -> Experiment:
    for field, value in values.items():
        given, usual = getattr(experiment, field), Experiment.model_fields[field].default
        if given not in (usual, value) and not over:
            raise ValueError(f"{field}: got {text_of(given)}, but {whose} has {text_of(value)}; leave it out")
    steps = {"local_steps", "local_epochs"} & values.keys()
    other = dict.fromkeys({"local_steps", "local_epochs"} - steps) if steps else {}
    return experiment.model_copy(update={**other, **values})
