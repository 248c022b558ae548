"""The registry of aggregators. Those of one method register in `fedraa/methods`, robust ones in `robust`."""

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
    """Return the client without whose delta a described aggregator cannot move the model, None if there is none."""
    if aggregator is None or is_foreign(aggregator):
        return None
    needed: int | None = getattr(AGGREGATOR.resolve(aggregator), "needed_client", None)
    return needed
