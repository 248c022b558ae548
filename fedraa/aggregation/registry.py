"""The registry of aggregators.

An aggregator of only one method is registered in the method's file in `fedraa/methods`. Robust aggregators are
registered in the folder `robust`.
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
)


def find_needed_client(aggregator: Any) -> int | None:
    """Return `Aggregator.needed_client`, or None if the object lacks this attribute."""
    if aggregator is None or is_foreign(aggregator):
        return None
    needed: int | None = getattr(AGGREGATOR.resolve(aggregator), "needed_client", None)
    return needed
