"""What becomes of a round's deltas."""

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.coverage_mean import Covered, Filled
from fedraa.aggregation.low_rank import FLoRA, HetLoRA
from fedraa.aggregation.memorised import Memorised
from fedraa.components import Seam

AGGREGATOR: Seam[Aggregator] = Seam(
    "aggregator",
    ("bind", "add", "finish", "memory", "state", "restore"),
    {"covered": Covered, "filled": Filled, "memorised": Memorised, "hetlora": HetLoRA, "flora": FLoRA},
)

__all__ = ["AGGREGATOR", "Aggregator", "Covered", "FLoRA", "Filled", "HetLoRA", "Memorised"]
