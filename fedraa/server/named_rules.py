"""The asynchronous rules that have a name."""

from fedraa.components import Seam
from fedraa.server.async_rule import AsyncRule, Buffer, StalenessMix
from fedraa.server.delta_mix import DeltaMix
from fedraa.server.evened_delta import EvenedDelta
from fedraa.server.rivals import ACE, CA2FL, AsyncFedED, Fadas, FedGMR, Ringleader, Ringmaster

ASYNC_RULE: Seam[AsyncRule] = Seam(
    "async_rule",
    ("bind", "take", "state", "restore"),
    {
        "staleness-mix": StalenessMix,
        "delta": DeltaMix,
        "evened-delta": EvenedDelta,
        "buffer": Buffer,
        "ca2fl": CA2FL,
        "ace": ACE,
        "ringmaster": Ringmaster,
        "ringleader": Ringleader,
        "fadas": Fadas,
        "asyncfeded": AsyncFedED,
        "fedgmr": FedGMR,
    },
)
