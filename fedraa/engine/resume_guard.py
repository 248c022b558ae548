"""The settings in config.json that must not change before a run is resumed. Checkpoints hold a copy of them."""

from collections.abc import Mapping
from typing import Any

from fedraa.engine.run_description import PENDING_EVALS_KEY
from fedraa.errors import short_text

# The limits that an extended run may change, with their names among the resolved limits and as the reason of an end.
LIMITS = {"updates": "steps", "rounds": "steps", "time": "time", "target_accuracy": "accuracy", "target": "target"}
# These fields affect where a run executes or what it prints, not its result. They may be edited before resuming.
ELSEWHERE = frozenset(
    ("address", "data_dir", "device", "engine", "out", "placement", "quiet", "resources", "server_node", "workers")
)


def asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment, and the limit on evaluations in progress."""
    return {**config["experiment"], PENDING_EVALS_KEY: config["resolved"][PENDING_EVALS_KEY]}


def changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a clause about the first setting that changed, or None if no setting that affects the result did."""
    for name, value in was.items():
        if name not in LIMITS and name not in ELSEWHERE and now.get(name) != value:
            return f"has {name} {short_text(now.get(name))}, and had {short_text(value)}"
    return None
