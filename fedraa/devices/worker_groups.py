"""Worker groups: workers with the same Ray resources, which train the clients of one tier of devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedraa.devices.compute_speeds import tier_sizes
from fedraa.devices.device_columns import parse_float
from fedraa.errors import InputError
from fedraa.messages import Index
from fedraa.numbers import format_count

FORM = "COUNT:NAME=AMOUNT,... with different names, as in 2:CPU=1,GPU=0.5"


@dataclass(frozen=True)
class WorkerGroup:
    """A group of identical workers.

    Attributes:
        workers: The number of workers.
        needs: The amount of each Ray resource that one worker needs, by name.
    """

    workers: int
    needs: Mapping[str, float]


def parse_group(text: str) -> WorkerGroup:
    """Return the worker group that a text describes. Raise InputError if it is malformed.

    For example, `2:CPU=1,GPU=0.5` describes two workers, each with one core and half a GPU.
    """
    count, _, needs = text.partition(":")
    pairs = [part.partition("=")[::2] for part in needs.split(",")]
    names = {name for name, _ in pairs}
    if not count.isdecimal() or int(count) < 1 or "" in names or len(names) < len(pairs):
        raise InputError("resources", got=text, expected=f"{FORM}, once for every tier of compute")
    return WorkerGroup(int(count), {name: _parse_amount(text, amount) for name, amount in pairs})


def group_of_clients(groups: Sequence[WorkerGroup], compute: object, clients: int) -> Index:
    """Return the index of the worker group that trains each client, int64 [clients].

    Args:
        groups: The worker groups, in the order of the tiers.
        compute: The option `compute`, which must have tiers.
        clients: The number of clients.

    Raises:
        InputError: The number of groups differs from the number of tiers.
    """
    sizes = tier_sizes(compute, clients)
    if len(sizes) != len(groups):
        given, wanted = format_count(len(groups), "group"), format_count(len(sizes), "tier")
        problem = f"it has {given} of workers, but compute has {wanted}"
        raise InputError("resources", problem, hint="give one group for every tier, in the order of the tiers")
    return np.repeat(np.arange(len(groups)), sizes)


def _parse_amount(text: str, amount: str) -> float:
    value = parse_float(amount)
    if not 0 <= value < np.inf:
        raise InputError("resources", f"{amount!r} is not an amount", got=text, expected=FORM)
    return value
