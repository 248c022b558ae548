"""The settings in config.json that must not change before a resume. Each checkpoint has a copy of them."""

from collections.abc import Mapping
from typing import Any

from fedraa.config.experiment import Experiment
from fedraa.engine.run_description import PENDING_EVALS_KEY
from fedraa.errors import short_text


def pinned_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the experiment and the limit on evaluations in progress.

    A resumed run must have the same values of these settings, except for the fields in `Experiment.may_change()`.
    """
    return {**config["experiment"], PENDING_EVALS_KEY: config["resolved"][PENDING_EVALS_KEY]}


def first_difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a text about the first changed setting that affects the result, or None.

    An example is `has lr 0.2, but had 0.1`.
    """
    may_change = Experiment.may_change()
    for name, value in was.items():
        if name not in may_change and now.get(name) != value:
            return f"has {name} {short_text(now.get(name))}, but had {short_text(value)}"
    return None
