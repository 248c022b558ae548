"""The names of the asynchronous rules that are built in."""

from fedraa.components import Seam
from fedraa.server.async_rules import AsyncRule, Buffer, StalenessMix
from fedraa.server.delta_mix import DeltaMix

ASYNC_RULE: Seam[AsyncRule] = Seam(
    "async_rule",
    ("bind", "take", "state", "restore"),
    {"staleness-mix": StalenessMix, "delta": DeltaMix, "buffer": Buffer},
)
