"""The registry of aggregators. Those of one method register in `fedraa/methods`, robust ones in `robust`."""

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.coverage_mean import CoverageMean, FilledMean
from fedraa.components.registry import ComponentRegistry

AGGREGATOR: ComponentRegistry[Aggregator] = ComponentRegistry(
    "aggregator",
    ("bind", "add", "finish", "memory", "state", "restore"),
    {"covered": CoverageMean, "filled": FilledMean},
)
