"""The registry of aggregators.

A file in `fedraa/methods` registers an aggregator that only one method uses. The files in the folder `robust` register
robust aggregators.
"""

from typing import Any

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.coverage_mean import CoverageMean, FilledMean
from fedraa.components.registry import ComponentRegistry
from fedraa.components.text import is_foreign

AGGREGATOR: ComponentRegistry[Aggregator] = ComponentRegistry(
    "aggregator",
    ("bind", "add", "finish", "memory", "state", "restore"),
    {"covered": CoverageMean, "filled": FilledMean},
    base="Aggregator",
)


def find_needed_client(aggregator: Any) -> int | None:
    """Return `aggregator.needed_client`, or None if the aggregator lacks this attribute."""
    if aggregator is None or is_foreign(aggregator):
        return None
    needed: int | None = getattr(AGGREGATOR.resolve(aggregator), "needed_client", None)
    return needed


def may_set_traffic(aggregator: Any) -> bool:
    """Return True if the aggregator is custom, or states the bytes of a task itself, as FLoRA does.

    `aggregator` is its description in config.json, or None without one.
    """
    if aggregator is None:
        return False
    if is_foreign(aggregator):
        return True
    kind = type(AGGREGATOR.resolve(aggregator))
    return getattr(kind, "traffic_sizes", None) not in (None, Aggregator.traffic_sizes)
