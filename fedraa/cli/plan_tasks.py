"""The tasks that the server sends in the first rounds, drawn without training, and the totals of their costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.devices.availability import LEFT_HINT
from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import InputError
from fedraa.messages import Floats, Task

Ints = npt.NDArray[np.int64]

# Maximum number of simulated clients. If there are more, a sample of this size represents them.
MAX_SIMULATED = 20_000
# Minimum and maximum number of simulated rounds. The rounds of a longer run are extrapolated.
MIN_ROUNDS = 2
MAX_ROUNDS = 100
# Maximum number of parameters of all simulated tasks, unless this leaves fewer than `MIN_ROUNDS` rounds. The drawing of
# a task takes time in proportion to its parameters.
MAX_COORDINATES = 2**29


@dataclass
class Totals:
    """The expected traffic and energy of all tasks of a run.

    Attributes:
        down: Bytes that the clients receive.
        up: Bytes that the clients send.
        energy: Joules; None if the devices have no watts.
    """

    down: float = 0.0
    up: float = 0.0
    energy: float | None = None

    def add(self, other: "Totals") -> None:
        """Add other totals."""
        self.down += other.down
        self.up += other.up
        if other.energy is not None:
            self.energy = (self.energy or 0.0) + other.energy

    def scale(self, factor: float) -> "Totals":
        """Return the totals for `factor` times the number of tasks."""
        energy = None if self.energy is None else self.energy * factor
        return Totals(self.down * factor, self.up * factor, energy)


@dataclass
class RoundTasks:
    """The tasks of one round, or a sample of them.

    Attributes:
        total: The number of all tasks of the round.
        clients: The client of each task [n].
        turns: The number of earlier tasks of this client [n].
        costs: The cost of each task [n].
        down: The bytes that the client of each task receives [n].
        up: The bytes that the client of each task sends [n].
        energies: The joules of each task [n]; empty if the devices have no watts.
        duration: The duration of the round in time units.
        waited_share: The fraction of the tasks for which the server waits.
    """

    total: int
    clients: Ints
    turns: Ints
    costs: Floats
    down: Floats
    up: Floats
    energies: Floats
    duration: float = 0.0
    waited_share: float = 1.0

    @property
    def scale(self) -> float:
        """The number of tasks of the round that each of these tasks represents."""
        return self.total / max(1, len(self.costs))

    def sum_costs(self, weights: Floats, up_weights: Floats) -> Totals:
        """Return the weighted sums of the costs of the tasks.

        Args:
            weights: The number of tasks of the run that each task of this round represents [n].
            up_weights: The number of these tasks of which the client sends its update [n].
        """
        energy = float(weights @ self.energies) if len(self.energies) else None
        return Totals(down=float(weights @ self.down), up=float(up_weights @ self.up), energy=energy)


class TaskDraws:
    """Draws of the tasks that a server sends first, without training.

    Attributes:
        server: A server of the run.
        first: The tasks of the first round with clients, or a sample of them. Empty before it is drawn.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._down: list[float] = []
        self._energies: list[float] = []
        self._full_costs = make_cost_model(spec).table([spec.traced.widths(spec.traced.full())])[:, 0]
        # The tasks do not depend on the mean of the models.
        method = spec.method.replace(polyak_fraction=0.0)
        self.server: Any = make_server(replace(spec, method=method), self._record_task)
        self.first: list[Task] = []

    def draw(self, clients: Iterable[int], now: float) -> RoundTasks:
        """Return the tasks of the clients, or those of at most `MAX_SIMULATED` of them."""
        chosen = np.fromiter(clients, np.int64)
        sample = chosen[spread_by_rank(self._full_costs[chosen])]
        self._down.clear()
        self._energies.clear()
        tasks = [self.server.assign(client, now) for client in sample.tolist()]
        self._count_unsampled(np.setdiff1d(chosen, sample))
        self.first = self.first or tasks
        return RoundTasks(
            total=len(chosen),
            clients=sample,
            turns=np.array([task.turn for task in tasks], np.int64),
            costs=np.array([task.cost for task in tasks]),
            down=np.array(self._down),
            up=np.array([task.bytes_up for task in tasks], np.float64),
            energies=np.array(self._energies),
        )

    def _count_unsampled(self, clients: Ints) -> None:
        """Count a task of clients that are not in the sample, so that they get no more than `max_participations`."""
        ledger = self.server.ledger
        ledger.turns[clients] += 1
        for client, turn in zip(clients.tolist(), ledger.turns[clients].tolist(), strict=True):
            ledger.bad_clients.count_tasks(client, turn)

    def _record_task(self, kind: str, t: float, /, **fields: Any) -> None:
        if kind != "dispatch":
            return
        self._down.append(fields["bytes_down"])
        if "energy" in fields:
            self._energies.append(fields["energy"])


def has_enough_draws(spec: RunSpec, draws: Sequence[RoundTasks]) -> bool:
    """Return True if a plan draws no more rounds, or no more first tasks of an asynchronous run."""
    sizes = [len(part.costs) for part in draws]
    if len(draws) >= min(MAX_ROUNDS, spec.limits.steps or inf) or sum(part.total for part in draws) >= max_tasks(spec):
        return True
    affordable = min(MAX_SIMULATED, MAX_COORDINATES // spec.traced.size)
    return len(draws) >= MIN_ROUNDS and sum(sizes) + max(sizes) > affordable


def spread_by_rank(costs: Floats) -> Ints:
    """Return the indices of at most `MAX_SIMULATED` costs [N], evenly spread from the lowest to the highest."""
    if len(costs) <= MAX_SIMULATED:
        return np.arange(len(costs))
    by_cost = np.argsort(costs, kind="stable")
    return np.sort(by_cost[np.linspace(0, len(costs) - 1, MAX_SIMULATED).round().astype(np.int64)])


def max_tasks(spec: RunSpec) -> float:
    """Return the number of tasks after which all clients have had `max_participations` tasks; infinity without it."""
    limit = spec.experiment.max_participations
    if limit is None:
        return inf
    return limit * spec.experiment.client_count


def goal_note(spec: RunSpec) -> str:
    """Return `, unless TARGET is reached before` for a run with a target, otherwise an empty text."""
    goal = spec.limits.goal
    if goal is None:
        return ""
    return f", unless {goal} is reached before"


def stalled_note(spec: RunSpec, last: str, time: float) -> str:
    """Return a note that no device is available again. Raise InputError for a run without a target, which would fail.

    Args:
        spec: The run.
        last: The last update or round.
        time: The time at which it ends.
    """
    # A run with a target may reach it before.
    if spec.limits.goal is None:
        problem = f"after {last} at time {time:.4g}, no device that trains will be available again"
        raise InputError("availability", problem, hint=LEFT_HINT)
    return ", after which no device is available again"


def sample_note(sample: int, total: int) -> str:
    """Return a note about the number of simulated clients, or an empty text if all clients are simulated."""
    if sample == total:
        return ""
    return f", from a simulation of {sample} of the {total} clients"
