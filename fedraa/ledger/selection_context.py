"""A server's observations about clients, and the read-only view of them that a selection receives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.components.state import Stateful
from fedraa.messages import Floats

Ints = npt.NDArray[np.int64]

# Weight of the newest value in the running means of losses and durations.
RUNNING_MEAN_WEIGHT = 0.1


@dataclass(frozen=True, eq=False)
class ClientFacts:
    """Properties of the clients that are known before the first task.

    Attributes:
        samples: Number of training samples of each client [N].
        durations: Modelled duration of a task of each client [N], in time units.
        find_start: A function of a client and the current time. It returns the time from which the client is available.
    """

    samples: Ints
    durations: Floats
    find_start: Callable[[int, float], float]


@dataclass(frozen=True, slots=True, eq=False)
class SelectionContext:
    """The state of the server when it chooses clients.

    Arrays are read-only and, except `candidates`, have one entry per client [N]. If clients train different submodels,
    a client's loss and duration are divided by the running means for submodels like the one that it trained last: the
    same fragment, or a sampled submodel of the same size.

    Attributes:
        candidates: Clients that can be chosen, ascending: neither training nor quarantined.
        count: Number of clients to choose.
        step: Server step, or round, from 0.
        now: Time on the run's clock, in time units.
        samples: Number of training samples of each client.
        losses: Mean training loss of the client's last update; infinite before the first one.
        durations: Duration of the client's last task, in time units; before the first task the modelled duration. If
            a task is lost after a longer time, the value becomes this time.
        participations: Number of the client's updates.
        last_steps: Server step of the client's last update, -1 before the first one.
        find_start: A function of a client and the current time. It returns the time from which the client is available.
    """

    candidates: Ints
    count: int
    step: int
    now: float
    samples: Ints
    losses: Floats
    durations: Floats
    participations: Ints
    last_steps: Ints
    find_start: Callable[[int, float], float]


@dataclass(eq=False)
class RunningMeans(Stateful):
    """The running mean of a value for each class of submodels (`Task.size_class`)."""

    means: dict[int, float] = field(default_factory=dict)

    state_fields: ClassVar[tuple[str, ...]] = ("means",)

    def add(self, size_class: int, value: float) -> None:
        """Add a value of a submodel of this class."""
        mean = self.means.get(size_class, value)
        self.means[size_class] = mean + RUNNING_MEAN_WEIGHT * (value - mean)

    def divide(self, values: Floats, classes: Ints) -> Floats:
        """Return the values [N], divided by the running means of their classes.

        With only one class the values stay unchanged. A value without a class is divided by the mean of the running
        means.

        Args:
            values: The values [N].
            classes: The class of each value [N], -1 for a value without a class.
        """
        if len(self.means) < 2:
            return values.copy()
        divisors = np.full(len(values), np.mean(list(self.means.values())))
        for size_class, mean in self.means.items():
            divisors[classes == size_class] = mean
        return values / np.where(divisors > 0, divisors, 1.0)


class ClientStats(Stateful):
    """Observations about each client [N], from its updates and its lost tasks."""

    state_fields: ClassVar[tuple[str, ...]] = (
        "losses",
        "durations",
        "participations",
        "last_steps",
        "size_classes",
        "mean_losses",
        "mean_durations",
    )

    def __init__(self, facts: ClientFacts) -> None:
        clients = len(facts.samples)
        self.facts = facts
        self.losses = np.full(clients, np.inf)
        self.durations = facts.durations.copy()
        self.participations = np.zeros(clients, np.int64)
        self.last_steps = np.full(clients, -1)
        self.size_classes = np.full(clients, -1)
        """The class of the submodel of each client's last update, -1 before the first one."""
        self.mean_losses = RunningMeans()
        self.mean_durations = RunningMeans()

    def record_update(self, client: int, size_class: int, *, loss: float, duration: float, step: int) -> None:
        """Record an update of a client.

        Args:
            client: The client.
            size_class: The class of the submodel that it trained (`Task.size_class`).
            loss: Mean training loss of the task.
            duration: Time from the dispatch of the task to its update.
            step: The server step at which the update arrived.
        """
        self.losses[client] = loss
        self.durations[client] = duration
        self.participations[client] += 1
        self.last_steps[client] = step
        self.size_classes[client] = size_class
        self.mean_losses.add(size_class, loss)
        self.mean_durations.add(size_class, duration)

    def record_lost(self, client: int, elapsed: float) -> None:
        """Record a lost task. It would have taken longer than `elapsed`."""
        self.durations[client] = max(self.durations[client], elapsed)

    def view(self, candidates: Ints, count: int, *, step: int, now: float) -> SelectionContext:
        """Return the view for a selection that chooses `count` of the candidates."""
        arrays = {
            "candidates": candidates,
            "samples": self.facts.samples.view(),
            "losses": self.mean_losses.divide(self.losses, self.size_classes),
            "durations": self.mean_durations.divide(self.durations, self.size_classes),
            "participations": self.participations.view(),
            "last_steps": self.last_steps.view(),
        }
        for array in arrays.values():
            array.flags.writeable = False
        return SelectionContext(count=count, step=step, now=now, find_start=self.facts.find_start, **arrays)
