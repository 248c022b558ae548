"""The registry of aggregators. Aggregators of one paper register in `fedraa/methods`."""

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.coverage_mean import Covered, Filled
from fedraa.components.registry import Seam

AGGREGATOR: Seam[Aggregator] = Seam(
    "aggregator",
    ("bind", "add", "finish", "memory", "state", "restore"),
    {"covered": Covered, "filled": Filled},
)
