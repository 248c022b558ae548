"""The expected number of steps and duration of a run.

For a method with rounds, they are computed from the first round. For an asynchronous method they come from a dry run, a
simulation without training.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraa.components.text import is_foreign
from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.forecast import dry_run
from fedraa.engine.run_spec import RunSpec, participation_of
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.dispatch import Dispatch
from fedraa.messages import Floats, Task
from schedulers import SchedulerRunner

Ints = npt.NDArray[np.int64]

# Maximum number of simulated clients. If there are more, a sample of this size represents them.
MAX_SIMULATED = 20_000
# If devices are not always available, this number of rounds is simulated, and their mean duration is computed.
AVAILABILITY_ROUNDS = 20
# Maximum number of simulated updates. The steps and the time of a longer run are extrapolated.
DRY_STEPS = 20_000


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

    def scale(self, factor: float) -> "Totals":
        """Return the totals for `factor` times the number of tasks."""
        energy = None if self.energy is None else self.energy * factor
        return Totals(self.down * factor, self.up * factor, energy)


class FirstRound(NamedTuple):
    """The tasks of the first round, or a sample of them.

    Attributes:
        tasks: The tasks [n].
        total: The number of all tasks of the round.
        down: The bytes that the client of each task receives [n].
        energies: The joules of each task [n]; empty if the devices have no watts.
    """

    tasks: list[Task]
    total: int
    down: list[float]
    energies: list[float]

    def sum_costs(self, weights: Floats, up_weights: Floats) -> Totals:
        """Return the weighted sums of the costs of the tasks.

        Args:
            weights: The number of tasks of the run that each task of the first round represents [n].
            up_weights: The number of these tasks of which the client sends its update [n].
        """
        energy = float(weights @ self.energies) if self.energies else None
        return Totals(
            down=float(weights @ self.down),
            up=float(up_weights @ [task.bytes_up for task in self.tasks]),
            energy=energy,
        )


def first_round(spec: RunSpec) -> FirstRound:
    """Return the tasks of the first round that has clients, at most `MAX_SIMULATED`."""
    down: list[float] = []
    energies: list[float] = []

    def record_task(kind: str, t: float, /, **fields: Any) -> None:
        if kind != "dispatch":
            return
        down.append(fields["bytes_down"])
        if "energy" in fields:
            energies.append(fields["energy"])

    server = make_server(spec, record_task)
    clients = np.fromiter(server.begin(), np.int64)
    # A Poisson round may have no clients. It ends at once.
    while not len(clients):
        clients = np.fromiter(server.close_round(0.0), np.int64)
    costs = make_cost_model(spec).table([spec.traced.widths(spec.traced.full())])[clients, 0]
    sample = clients[spread_by_rank(costs)].tolist()
    tasks = [server.assign(client, 0.0) for client in sample]
    return FirstRound(tasks, len(clients), down, energies)


def spread_by_rank(costs: Floats) -> Ints:
    """Return the indices of at most `MAX_SIMULATED` costs [N], evenly spread from the lowest to the highest."""
    if len(costs) <= MAX_SIMULATED:
        return np.arange(len(costs))
    by_cost = np.argsort(costs, kind="stable")
    return np.sort(by_cost[np.linspace(0, len(costs) - 1, MAX_SIMULATED).round().astype(np.int64)])


def async_outlook(spec: RunSpec, planner: SchedulerRunner) -> tuple[str, Totals]:
    """Return a sentence on the expected steps, time and staleness of an asynchronous run, and its totals."""
    limits = spec.limits
    rule: Any = spec.method.update
    sample = np.arange(len(planner.costs))
    if spec.at_a_time > MAX_SIMULATED:
        sample = spread_by_rank(planner.costs.sum(axis=1))
    # The clients, updates and staleness of the real run are those of the sample, multiplied by `times`.
    times = len(planner.costs) / len(sample)
    sample_steps = max(1, round((limits.steps or DRY_STEPS * times) / times))
    ledger = first_ledger(spec, planner.for_clients(sample))
    totals = Totals()
    cost = make_task_cost(spec, sample, totals)
    dry = dry_run(ledger, rule, spec.timing, cost, steps=min(sample_steps, DRY_STEPS), time=limits.time)
    steps = dry.steps * times
    time = dry.time
    if dry.steps == DRY_STEPS:
        rate = steps / dry.time
        steps = _steps_within(spec, rate)
        time = steps / rate
    costs = make_cost_model(spec)
    totals.up = sum(
        count * costs.moved_bytes(part.widths)[1] for count, part in zip(dry.tasks, spec.submodels, strict=True)
    )
    shares = ""
    if len(dry.tasks) > 1:
        percentages = " ".join(f"{count / max(1, sum(dry.tasks)):.0%}" for count in dry.tasks)
        shares = f" ({percentages} by fragment)"
    notes = _goal_note(spec) + _sample_note(len(sample), len(planner.costs)) + _unknown_losses_note(spec)
    sentence = (
        f"{steps:.0f} updates in time {time:.4g}{shares}, staleness {times * dry.staleness_mean:.2f}, "
        f"at most {times * dry.staleness_max:.0f}{notes}"
    )
    return sentence, totals.scale(steps / max(1, dry.steps))


def _steps_within(spec: RunSpec, rate: float) -> float:
    """Return the number of updates within the run's limits, at `rate` updates per time unit."""
    steps = min(spec.limits.steps or np.inf, float(np.floor(_max_tasks(spec) / spec.method.update.per_step)))
    if spec.limits.time is not None:
        steps = min(steps, rate * spec.limits.time)
    return steps


def _max_tasks(spec: RunSpec) -> float:
    """Return the number of tasks after which all clients have had `max_participations` tasks; infinity without it."""
    limit = spec.experiment.max_participations
    if limit is None:
        return inf
    return limit * spec.experiment.client_count


def first_ledger(spec: RunSpec, planner: SchedulerRunner) -> AsyncLedger:
    """Return the ledger of an asynchronous run before its first task.

    The ledger makes the server's decisions.
    """
    clients, fragments = planner.costs.shape
    concurrency = None
    if spec.at_a_time < clients:
        concurrency = spec.at_a_time
    return AsyncLedger(
        clients=clients,
        seed=spec.experiment.seed,
        bad_clients=BadClients(max_tasks=spec.experiment.max_participations),
        fragments=fragments,
        scheduler=planner,
        concurrency=concurrency,
    )


def make_task_cost(spec: RunSpec, clients: Ints, totals: Totals | None = None) -> Callable[[Dispatch, float], float]:
    """Return a function that computes the cost of a task from the task and its sending time.

    Args:
        spec: The run.
        clients: The simulated clients [n]. Client i of the simulation is client `clients[i]` of the run.
        totals: The function adds the received bytes and the energy of each task to these totals.
    """
    costs = make_cost_model(spec)
    shapes = [submodel.widths for submodel in spec.submodels]
    moved = [costs.moved_bytes(widths) for widths in shapes]

    def dispatch_cost(task: Dispatch, now: float) -> float:
        down, up = moved[task.fragment]
        # A client that continues from its own weights downloads nothing.
        if task.resent:
            down = 0
        duration, energy = costs.cost(shapes[task.fragment], int(clients[task.client]), down, up, now)
        if totals is not None:
            totals.down += down
            if energy is not None:
                totals.energy = (totals.energy or 0.0) + energy
        return duration

    return dispatch_cost


def sampled_outlook(spec: RunSpec, first: FirstRound) -> tuple[str, Totals]:
    """Return a sentence about the expected steps and time of an asynchronous run with random submodels, and totals.

    The estimate assumes that all tasks of a client cost as much as its first task.

    Args:
        spec: The run.
        first: The first task of each client, or of a sample of the clients.
    """
    tasks, total = first.tasks, first.total
    rates = np.array([1 / task.cost for task in tasks])
    rate = float(rates.sum()) / spec.method.update.per_step * total / len(tasks)
    steps = _steps_within(spec, rate)
    condition = f"if all tasks are like the first{_goal_note(spec)}{_sample_note(len(tasks), total)}"
    sentence = f"{steps:.0f} updates in time {steps / rate:.4g}, {condition}"
    up_weights = rates * (steps * spec.method.update.per_step / rates.sum())
    # At the end, every client trains a task that the server does not use. After the last step, the client of this step
    # gets no task.
    in_flight = total - 1 if steps == spec.limits.steps else total
    if steps * spec.method.update.per_step == _max_tasks(spec):
        in_flight = 0
    return sentence, first.sum_costs(up_weights + in_flight / len(tasks), up_weights)


def rounds_outlook(spec: RunSpec, first: FirstRound) -> tuple[str, Totals | None]:
    """Return a sentence about the expected rounds and time of a run with rounds, and its totals.

    The estimate assumes that all rounds are like the first round. With a deadline, the totals are None, because the
    number of late clients is unknown. If the time ends the run, the totals also have the round that the server starts
    but does not finish.
    """
    tasks, total = first.tasks, first.total
    limits = spec.limits
    longest = _round_duration(spec, first)
    steps = min(limits.steps or np.inf, float(np.ceil(_max_tasks(spec) / total)))
    # The rest of the time after the last whole round, if the time ends the run.
    rest = None
    if limits.time is not None and limits.time // longest < steps:
        steps, rest = divmod(limits.time, longest)
    time = steps * longest
    condition = f"if all rounds are like the first{_goal_note(spec)}{_sample_note(len(tasks), total)}"
    sentence = f"{steps:.0f} rounds of {longest:.4g} in time {time:.4g}, {condition}"
    schedule: Any = spec.method.schedule
    if schedule.deadline is not None:
        timing = replace(spec.timing, jitter=0.0)
        ready = sum(timing.due(task.client, 0, 0.0, task.cost) <= schedule.deadline for task in tasks)
        return f"{sentence}; {ready} of {len(tasks)} clients end the first round before the deadline", None
    weights = np.full(len(tasks), steps * total / len(tasks))
    up_weights = weights * _waited_tasks(spec, first) / len(tasks)
    if rest is not None:
        weights += total / len(tasks)
        up_weights += total / len(tasks) * (np.array([task.cost for task in tasks]) <= rest)
    return sentence, first.sum_costs(weights, up_weights)


def _waited_tasks(spec: RunSpec, first: FirstRound) -> int:
    """Return the number of tasks of the first round for which the server waits."""
    schedule: Any = spec.method.schedule
    if schedule.over_selection == 1:
        return len(first.tasks)
    participation: Any = participation_of(schedule)
    count: int = participation.count
    return ceil(len(first.tasks) * count / first.total)


def _round_duration(spec: RunSpec, first: FirstRound) -> float:
    """Return the expected duration of a round in time units, without random factors (`jitter`).

    If devices are not always available, the result is the mean over `AVAILABILITY_ROUNDS` rounds.
    """
    schedule: Any = spec.method.schedule
    tasks = first.tasks
    last = _waited_tasks(spec, first)
    timing = replace(spec.timing, jitter=0.0)
    rounds = 1 if timing.availability is None else AVAILABILITY_ROUNDS
    now = 0.0
    for turn in range(rounds):
        closes_at = sorted(timing.due(task.client, turn, now, task.cost) for task in tasks)[last - 1]
        if schedule.deadline is not None:
            closes_at = min(closes_at, now + schedule.deadline)
        if closes_at == inf:
            return inf
        now = closes_at
    return now / rounds


def _goal_note(spec: RunSpec) -> str:
    """Return `, unless TARGET is reached before` for a run with a target, otherwise an empty text."""
    goal = spec.limits.goal
    if goal is None:
        return ""
    return f", unless {goal} is reached before"


def _unknown_losses_note(spec: RunSpec) -> str:
    """Return a note if the choice of clients or fragments may depend on losses, which a dry run does not have."""
    if getattr(spec.method.schedule, "next_client", "uniform") != "uniform":
        return "; the dry run draws the next client at random, and the selection will choose differently"
    if not is_foreign(spec.experiment.model_dump(mode="json")["scheduler"]):
        return ""
    return "; a scheduler that uses losses will choose differently when the first losses are known"


def _sample_note(sample: int, total: int) -> str:
    if sample == total:
        return ""
    return f", from a simulation of {sample} of the {total} clients"
