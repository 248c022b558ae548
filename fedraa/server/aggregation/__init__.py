"""What becomes of a round's deltas."""

from fedraa.components import Seam
from fedraa.server.aggregation.aggregator import Aggregator
from fedraa.server.aggregation.coverage_mean import Covered, Filled
from fedraa.server.aggregation.low_rank import FLoRA, HetLoRA
from fedraa.server.aggregation.memorised import Memorised

AGGREGATOR: Seam[Aggregator] = Seam(
    "aggregator",
    ("bind", "add", "finish", "memory", "state", "restore"),
    {"covered": Covered, "filled": Filled, "memorised": Memorised, "hetlora": HetLoRA, "flora": FLoRA},
)

__all__ = ["AGGREGATOR", "Aggregator", "Covered", "FLoRA", "Filled", "HetLoRA", "Memorised"]
