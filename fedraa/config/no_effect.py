"""Refuse fields of an experiment that have no effect because of other fields."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedraa.config.sections import ClusterOptions
from fedraa.errors import no_effect_error

_ONLY_ON_RAY = tuple(
    name for name in ClusterOptions.model_fields if name not in ("engine", "workers", "threads_per_worker")
)


@dataclass(frozen=True)
class _Rule:
    """A field that has no effect under a condition.

    Attributes:
        field: The name of the field.
        has_no_effect: Returns True if the field of an experiment has no effect.
        why: Returns the reason, such as `no attack`.
        remedy: The next step for the user.
    """

    field: str
    has_no_effect: Callable[[Any], bool]
    why: Callable[[Any], str]
    remedy: str


_RULES = (
    _Rule(
        "dirichlet",
        lambda experiment: experiment.partition not in (None, "dirichlet"),
        lambda experiment: f"partition {experiment.partition}",
        "give --partition dirichlet, or leave it out",
    ),
    _Rule(
        "local_steps",
        lambda experiment: experiment.local_epochs is not None,
        lambda experiment: f"local_epochs {experiment.local_epochs}",
        "give one of the two",
    ),
    _Rule(
        "attackers",
        lambda experiment: experiment.attack is None,
        lambda experiment: "no attack",
        "give --attack, such as sign-flip",
    ),
    _Rule(
        "privacy_delta",
        lambda experiment: experiment.privacy is None,
        lambda experiment: "no privacy",
        "give --privacy, such as central",
    ),
    _Rule(
        "client_evals_of",
        lambda experiment: experiment.client_evals is None,
        lambda experiment: "no client_evals",
        "give --client-evals final, all or a number",
    ),
    _Rule(
        "time_scale",
        lambda experiment: experiment.clock == "virtual",
        lambda experiment: "the virtual clock",
        "give --clock wall, or leave it out",
    ),
    *(
        _Rule(
            field,
            lambda experiment: experiment.engine == "local",
            lambda experiment: "engine local",
            "give --engine ray, or leave it out",
        )
        for field in _ONLY_ON_RAY
    ),
)


def refuse_without_effect(experiment: Any) -> None:
    """Raise InputError for a field that has no effect because of the value of another field.

    Fields that have no effect because of the method, the data or the model are checked later.
    """
    for rule in _RULES:
        if experiment.is_set(rule.field) and rule.has_no_effect(experiment):
            raise no_effect_error(rule.field, getattr(experiment, rule.field), rule.why(experiment), rule.remedy)
