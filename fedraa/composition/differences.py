"""The comparison of a method with its description in the configuration of an earlier run."""

import json
from collections.abc import Mapping
from typing import Any

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.client.compression import COMPRESSOR
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER
from fedraa.components.registry import ComponentRegistry
from fedraa.components.text import describe_component, is_foreign, matches_description
from fedraa.composition.method import Method
from fedraa.ledger.participation import NEXT_CLIENT, PARTICIPATION
from fedraa.server.optimizers import SERVER_OPTIMIZER
from fedraa.server.schedule import SCHEDULER
from fedraa.server.staleness import STALENESS

# For each field of a method: the registry of its components. The registry turns a text such as `adam(beta1=0.8)` into a
# component, which can then be compared with the description of a component in config.json.
_REGISTRIES: dict[str, ComponentRegistry[Any]] = {
    "participation": PARTICIPATION,
    "next_client": NEXT_CLIENT,
    "scheduler": SCHEDULER,
    "staleness": STALENESS,
    "aggregator": AGGREGATOR,
    "optimizer": SERVER_OPTIMIZER,
    "compressor": COMPRESSOR,
    "local_optimizer": LOCAL_OPTIMIZER,
    "download_compressor": COMPRESSOR,
}


def differing_part(was: Mapping[str, Any], method: Method) -> str | None:
    """Return the first part of a method that differs from its description in config.json, or None."""
    return _differing_path(was, json.loads(json.dumps(method.described())))


def _differing_path(was: Any, now: Any, where: str = "") -> str | None:
    """Return the path of the first difference between two descriptions of a method, or None.

    A component may be a text in one of them and a mapping in the other.

    Args:
        was: A part of the description in config.json.
        now: The same part of the current description.
        where: The path of the part, empty for the whole method.
    """
    for text, described in ((was, now), (now, was)):
        if isinstance(text, str) and isinstance(described, Mapping):
            return None if _creates_component(text, described, where) else where
    if was == now:
        return None
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return where
    for key in {**was, **now}:
        path = f"{where}.{key}".lstrip(".")
        if key not in was or key not in now:
            return path
        differing = _differing_path(was[key], now[key], path)
        if differing is not None:
            return differing
    return None


def _creates_component(text: str, described: Mapping[str, Any], where: str) -> bool:
    """Return True if the text creates the described component.

    For a custom component, only values in the text are compared.

    Args:
        text: The text of a component, such as `adam(beta1=0.8)`.
        described: The description of a component.
        where: The path of the component in the method.
    """
    registry = _REGISTRIES.get(where.rpartition(".")[2])
    if registry is None or is_foreign(text):
        return matches_description(text, described)
    return bool(json.loads(json.dumps(describe_component(registry.resolve(text)))) == described)
