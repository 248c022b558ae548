"""The expected number of steps and duration of an asynchronous run, from a dry run, a simulation without training.

If a method draws random submodels, they come from several draws of each client's first task instead.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.cli.plan_tasks import (
    MAX_SIMULATED,
    RoundTasks,
    TaskDraws,
    Totals,
    goal_note,
    has_enough_draws,
    max_tasks,
    sample_note,
    spread_by_rank,
    stalled_note,
)
from fedraa.components.text import is_foreign
from fedraa.engine.factories import make_cost_model
from fedraa.engine.forecast import dry_run
from fedraa.engine.run_spec import RunSpec
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.dispatch import Dispatch
from fedraa.messages import Task
from fedraa.numbers import format_count
from fedraa.server.schedule import AsyncSchedule
from schedulers import SchedulerRunner

Ints = npt.NDArray[np.int64]

# Maximum number of simulated updates. The steps and the time of a longer run are extrapolated.
DRY_STEPS = 20_000
# The fractional parts of the multiples of this number are evenly spread from 0 to 1.
GOLDEN_RATIO = (5**0.5 - 1) / 2


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
    end = stalled_note(spec, f"update {steps:.0f}", dry.time) if dry.stalled else ""
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
    notes = goal_note(spec) + sample_note(len(sample), len(planner.costs)) + _unknown_losses_note(spec)
    sentence = (
        f"{format_count(steps, 'update')} in time {time:.4g}{spec.fleet.unit}{shares}{end}, "
        f"staleness {times * dry.staleness_mean:.2f}, at most {times * dry.staleness_max:.0f}{notes}"
    )
    return sentence, totals.scale(steps / max(1, dry.steps))


def _steps_within(spec: RunSpec, rate: float) -> float:
    """Return the number of updates within the run's limits, at `rate` updates per time unit."""
    steps = min(spec.limits.steps or np.inf, float(np.floor(max_tasks(spec) / spec.method.update.per_step)))
    if spec.limits.time is not None:
        steps = min(steps, rate * spec.limits.time)
    return steps


def first_ledger(spec: RunSpec, planner: SchedulerRunner) -> AsyncLedger:
    """Return the ledger of an asynchronous run before its first task.

    The ledger makes the server's decisions. If the planner has a sample of the clients, the same share of the clients
    trains at the same time.
    """
    schedule = spec.method.schedule
    assert isinstance(schedule, AsyncSchedule)
    clients, fragments = planner.costs.shape
    concurrency = None
    if spec.at_a_time < spec.experiment.client_count:
        concurrency = max(1, round(spec.at_a_time * clients / spec.experiment.client_count))
    return AsyncLedger(
        clients=clients,
        seed=spec.experiment.seed,
        bad_clients=BadClients(max_tasks=spec.experiment.max_participations),
        fragments=fragments,
        scheduler=planner,
        concurrency=concurrency,
        staleness_clock=schedule.staleness_clock,
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
        modelled = costs.cost(shapes[task.fragment], int(clients[task.client]), down, up, now)
        if totals is not None:
            totals.down += down
            if modelled.energy is not None:
                totals.energy = (totals.energy or 0.0) + modelled.energy
        return modelled.duration

    return dispatch_cost


def draw_sampled(spec: RunSpec) -> tuple[list[RoundTasks], list[Task]]:
    """Return several draws of the first tasks of an asynchronous server, and the `Task` objects of the first draw.

    In draw number k, the server has made k steps, so that its submodels are drawn again. The times of the draws are
    spread over the run, because submodels may grow with time.
    """
    rounds: list[RoundTasks] = []
    first: list[Task] = []
    duration = 0.0
    while not has_enough_draws(spec, rounds):
        draws = TaskDraws(spec)
        draws.server.ledger.step = len(rounds)
        rounds.append(draws.draw(draws.server.begin(), duration * (len(rounds) * GOLDEN_RATIO % 1)))
        if not first:
            first = draws.first
            rate = _update_rate(spec, rounds[0])
            duration = _steps_within(spec, rate) / rate
    return rounds, first


def sampled_outlook(spec: RunSpec, draws: list[RoundTasks]) -> tuple[str, Totals]:
    """Return a sentence about the expected steps and time of an asynchronous run with random submodels, and totals.

    `draws` has the first task of each client, or of a sample of the clients, for each draw. The estimate assumes that
    all tasks of a client cost as much as the mean of the drawn tasks of this client.
    """
    means = {
        name: np.mean([getattr(part, name) for part in draws], axis=0) for name in ("costs", "down", "up", "energies")
    }
    first = replace(draws[0], **means)
    rates = 1 / first.costs
    rate = _update_rate(spec, first)
    steps = _steps_within(spec, rate)
    condition = "if all tasks are like the first"
    if len(draws) > 1:
        condition = f"if tasks cost as much as the mean of {len(draws)} draws"
    notes = goal_note(spec) + sample_note(len(rates), first.total)
    sentence = f"{format_count(steps, 'update')} in time {steps / rate:.4g}{spec.fleet.unit}, {condition}{notes}"
    up_weights = rates * (steps * spec.method.update.per_step / rates.sum())
    # At the end, every client trains a task that the server does not use. After the last step, the client of this step
    # gets no task.
    in_flight = first.total - 1 if steps == spec.limits.steps else first.total
    if steps * spec.method.update.per_step == max_tasks(spec):
        in_flight = 0
    return sentence, first.sum_costs(up_weights + in_flight / len(rates), up_weights)


def _update_rate(spec: RunSpec, tasks: RoundTasks) -> float:
    """Return the number of server updates per time unit, if all tasks of a client cost as much as its given task."""
    return float((1 / tasks.costs).sum()) * tasks.scale / spec.method.update.per_step


def _unknown_losses_note(spec: RunSpec) -> str:
    """Return a note if the choice of clients or fragments may depend on losses, which a dry run does not have."""
    if getattr(spec.method.schedule, "next_client", "uniform") != "uniform":
        return "; the dry run draws the next client at random, and the selection will choose differently"
    if not is_foreign(spec.experiment.model_dump(mode="json")["scheduler"]):
        return ""
    return "; a scheduler that uses losses will choose differently when the first losses are known"
