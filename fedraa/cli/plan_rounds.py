"""The expected number of rounds and duration of a run with rounds, from the tasks of its first rounds."""

from dataclasses import replace
from math import ceil, inf
from typing import Any

import numpy as np

from fedraa.cli.plan_tasks import (
    RoundTasks,
    TaskDraws,
    Totals,
    goal_note,
    has_enough_draws,
    max_tasks,
    sample_note,
    stalled_note,
)
from fedraa.components.text import text_of
from fedraa.engine.run_spec import RunSpec, participation_of
from fedraa.errors import InputError
from fedraa.ledger.participation import needs_observations
from fedraa.messages import Floats, Task
from fedraa.numbers import format_count

# A plan fails if this number of Poisson rounds at the start have no client.
MAX_EMPTY_ROUNDS = 10_000


def draw_rounds(spec: RunSpec) -> tuple[list[RoundTasks], list[Task]]:
    """Return the tasks of the first rounds, and the `Task` objects of the first round that has clients.

    With a deadline, this round is repeated, because the tasks of later rounds may depend on late clients.
    """
    schedule: Any = spec.method.schedule
    draws = TaskDraws(spec)
    drawn = draws.draw(draws.server.begin(), 0.0)
    rounds: list[RoundTasks] = []
    now = 0.0
    # A Poisson round may have no clients. It ends at once.
    while now < inf and not (draws.first and has_enough_draws(spec, rounds)):
        if len(rounds) == MAX_EMPTY_ROUNDS:
            problem = f"the first {MAX_EMPTY_ROUNDS} rounds have no client"
            raise InputError(
                "participation", problem, got=text_of(schedule.participation), hint="give a larger probability"
            )
        if drawn.total and rounds and schedule.deadline is not None:
            drawn = replace(drawn, turns=drawn.turns + 1)
        elif rounds:
            drawn = draws.draw(draws.server.skip_round(now), now)
        closes_at = _close_time(spec, drawn, now)
        share = _waited_tasks(spec, drawn) / max(1, len(drawn.costs))
        rounds.append(replace(drawn, duration=closes_at - now, waited_share=share))
        now = closes_at
    return rounds, draws.first


def rounds_outlook(spec: RunSpec, rounds: list[RoundTasks]) -> tuple[str, Totals | None]:
    """Return a sentence about the expected rounds and time of a run with rounds, and its totals.

    The drawn rounds begin with the first round of the run. The rounds after them count as the mean of their second
    half, because the first rounds of some methods are special. With a deadline, the totals are None, because the number
    of late clients is unknown. If the time ends the run, the totals also have the round that the server starts but does
    not finish.
    """
    tail = rounds[len(rounds) // 2 :]
    if not any(part.total for part in tail):
        tail = rounds
    size = float(np.mean([part.total for part in tail]))
    durations = np.array([part.duration for part in rounds])
    tasks_left = max(0.0, max_tasks(spec) - sum(part.total for part in rounds))
    full_rounds = len(rounds) + tasks_left / size
    steps = min(spec.limits.steps or inf, float(np.ceil(full_rounds)))
    # The rest of the time after the last whole round, if the time ends the run.
    rest = None
    if spec.limits.time is not None:
        finished, unfinished = _divide_time(spec.limits.time, durations, len(tail))
        if finished < steps:
            steps, rest = finished, unfinished
    end = ""
    if durations[-1] == inf and steps >= len(rounds):
        steps = len(rounds) - 1
        end = stalled_note(spec, f"round {steps}", float(durations[:-1].sum()))
    # The number of rounds of the run that each drawn round represents.
    weights = (np.arange(len(rounds)) < steps).astype(np.float64)
    weights[-len(tail) :] += max(0.0, steps - len(rounds)) / len(tail)
    time = float(sum(weights[weights > 0] * durations[weights > 0]))
    duration = time / steps if 0 < steps < inf else float(durations[-len(tail) :].mean())
    count = format_count(steps, "round")
    unit = spec.fleet.unit
    sentence = f"{count} of {duration:.4g}{unit} in time {time:.4g}{unit}{end}{_condition(spec, rounds, steps)}"
    schedule: Any = spec.method.schedule
    if schedule.deadline is not None:
        return sentence + _deadline_note(spec, rounds, schedule.deadline), None
    # The last round has fewer clients if the others have had all of their tasks.
    task_weights = weights.copy()
    task_weights[-len(tail) :] -= max(0.0, steps - full_rounds) / len(tail)
    totals = Totals()
    for part, weight in zip(rounds, task_weights.tolist(), strict=True):
        sent = np.full(len(part.costs), weight * part.scale)
        totals.add(part.sum_costs(sent, sent * part.waited_share))
    if rest is not None:
        pending = rounds[int(steps) : int(steps) + 1] or tail
        for part in pending:
            sent = np.full(len(part.costs), part.scale / len(pending))
            totals.add(part.sum_costs(sent, sent * (part.costs <= rest)))
    return sentence, totals


def _deadline_note(spec: RunSpec, rounds: list[RoundTasks], deadline: float) -> str:
    """Return a text on the clients of the first round that meet the deadline, in time units."""
    number = _first_round(rounds)
    part = rounds[number - 1]
    timing = replace(spec.timing, jitter=0.0)
    pairs = zip(part.clients.tolist(), part.costs.tolist(), strict=True)
    ready = sum(timing.due(client, 0, 0.0, cost) <= deadline for client, cost in pairs)
    return f"; clients that meet the deadline in round {number}: {ready} of {len(part.costs)}"


def _first_round(rounds: list[RoundTasks]) -> int:
    """Return the number of the first round that has clients, from 1."""
    return next(number for number, part in enumerate(rounds, 1) if part.total)


def _divide_time(time: float, durations: Floats, tail: int) -> tuple[float, float]:
    """Return the number of rounds that end within a time, and the rest of the time.

    Args:
        time: The time in time units.
        durations: The durations of the drawn rounds.
        tail: The number of last drawn rounds whose mean is the duration of every later round.
    """
    ends = np.cumsum(durations)
    if time < ends[-1]:
        finished = int(np.searchsorted(ends, time, side="right"))
        return finished, time - float(ends[finished - 1]) if finished else time
    later, rest = divmod(time - float(ends[-1]), float(durations[-tail:].mean()))
    return len(durations) + later, rest


def _condition(spec: RunSpec, rounds: list[RoundTasks], steps: float) -> str:
    """Return the assumption behind the expected time of a run with rounds; empty if there is none."""
    schedule: Any = spec.method.schedule
    condition = ""
    drawn = len(rounds)
    if schedule.deadline is not None:
        # `draw_rounds` repeats the first round that has clients.
        drawn = _first_round(rounds)
    if steps > drawn != len(rounds):
        condition = f", if later rounds are like round {drawn}"
    elif steps > len(rounds) == 1:
        condition = ", if all rounds are like the first"
    elif steps > len(rounds) == 2:
        condition = ", if later rounds are like round 2"
    elif steps > len(rounds):
        condition = f", if later rounds are like rounds {len(rounds) // 2 + 1} to {len(rounds)}"
    largest = max(rounds, key=lambda part: part.total)
    notes = goal_note(spec) + sample_note(len(largest.costs), largest.total)
    selection = participation_of(schedule)
    if selection is not None and needs_observations(selection) and not selection.is_private:
        notes += "; the selection will choose other clients when the losses are known"
    return condition + notes


def _waited_tasks(spec: RunSpec, drawn: RoundTasks) -> int:
    """Return the number of drawn tasks of a round for which the server waits."""
    schedule: Any = spec.method.schedule
    if schedule.over_selection == 1:
        return len(drawn.costs)
    participation: Any = participation_of(schedule)
    count: int = participation.count
    return ceil(len(drawn.costs) * count / max(1, drawn.total))


def _close_time(spec: RunSpec, drawn: RoundTasks, now: float) -> float:
    """Return the time at which a round ends.

    Args:
        spec: The run.
        drawn: The tasks of the round.
        now: Time at which the round starts.
    """
    if not drawn.total:
        return now
    schedule: Any = spec.method.schedule
    tasks = zip(drawn.clients.tolist(), drawn.turns.tolist(), drawn.costs.tolist(), strict=True)
    arrivals = sorted(spec.timing.due(client, turn, now, cost) for client, turn, cost in tasks)
    closes_at = arrivals[_waited_tasks(spec, drawn) - 1]
    if schedule.deadline is not None:
        closes_at = min(closes_at, now + schedule.deadline)
    return closes_at
