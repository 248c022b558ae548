"""Run directories that an older version wrote, as this one would have written them."""

from typing import Any

import numpy as np

from fedraa.messages import State


def upgrade_state(state: State) -> State:
    """A checkpoint of format 1: counts of coverage were kept with the mean, a scheduler saw nothing but its counts."""
    server = state["server"]
    server = _asynchronous(server) if "versions" in server else _rounds(server)
    return state | {"server": server}


def _asynchronous(server: dict[str, Any]) -> dict[str, Any]:
    versions = server["versions"]
    sent = versions.copy()
    for flight in server["ledger"]["in_flight"]:
        sent[flight["choice"]["label"]] += 1
    standing = {"sent": sent, "staleness": np.zeros_like(versions), "losses": np.full(len(versions), np.inf)}
    return server | standing | {"scheduler": {}}


def _rounds(server: dict[str, Any]) -> dict[str, Any]:
    aggregate, coverage = _split(server["aggregate"])
    auxiliaries = [_auxiliary(state) for state in server["companions"]]
    return server | {"aggregate": aggregate, "coverage": coverage, "companions": [*auxiliaries, {}][:2]}


def _split(mean: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A mean, less the counts that it held."""
    rest = {name: value for name, value in mean.items() if name not in ("count", "whole_count")}
    return rest, {"count": mean["count"], "whole": mean.get("whole_count", 0)}


def _auxiliary(state: dict[str, Any]) -> dict[str, Any]:
    if "gradient" in state:
        gradient, coverage = _split(state["gradient"])
        return state | {"gradient": gradient, "coverage": coverage}
    if "counts" in state:
        return state | {"losses": np.full(len(state["counts"]), np.inf), "scheduler": {}}
    return state
