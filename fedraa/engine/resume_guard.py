"""What config.json asks of a run that goes on, which its checkpoints keep: it must not have changed since."""

from collections.abc import Mapping
from typing import Any

from fedraa.engine.run_description import ASIDE_KEY
from fedraa.errors import short_text

# The limits that a longer run may change, and what they are called among those resolved and as the reason of an end.
LIMITS = {"updates": "steps", "rounds": "steps", "time": "time", "target_accuracy": "accuracy", "target": "target"}
# Where a run goes on and what it shows changes nothing of what comes out: this may be edited in config.json.
ELSEWHERE = frozenset(
    ("address", "data_dir", "device", "engine", "out", "placement", "quiet", "resources", "server_node", "workers")
)


def asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment, and how many evaluations may be under way."""
    return {**config["experiment"], ASIDE_KEY: config["resolved"].get(ASIDE_KEY)}


def changed(was: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str | None:
    """What is asked now that was not asked then, in words; None if that is nothing that matters."""
    for name, value in (was or {}).items():
        if name not in LIMITS and name not in ELSEWHERE and now.get(name) != value:
            return f"has {name} {short_text(now.get(name))}, and had {short_text(value)}"
    return None
