"""The registry of aggregators. Aggregators of one paper register in `fedraa/methods`."""

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.coverage_mean import CoverageMean, FilledMean
from fedraa.components.registry import ComponentRegistry

AGGREGATOR: ComponentRegistry[Aggregator] = ComponentRegistry(
    "aggregator",
    ("bind", "add", "finish", "memory", "state", "restore"),
    {"covered": CoverageMean, "filled": FilledMean},
)
