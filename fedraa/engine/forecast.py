"""What a run will take, by its costs alone: nothing is trained."""

import heapq
from dataclasses import dataclass

import numpy as np

from fedraa.devices.availability import Timing
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Task
from fedraa.rng import generator
from schedulers import Planner, Standing


@dataclass(frozen=True)
class Forecast:
    """An asynchronous run: `steps` server updates by `time` on the run's clock.

    `tasks` are the tasks answered per fragment; staleness is on the fragments' own versions.
    """

    time: float
    steps: int
    tasks: tuple[int, ...]
    staleness_mean: float
    staleness_max: int


def dry_run(
    planner: Planner,
    *,
    timing: Timing,
    seed: int,
    steps: int,
    time: float | None = None,
    tasks_per_step: int = 1,
) -> Forecast:
    """The asynchronous run of a planned scheduler, with the very draws that the real one makes on the virtual clock.

    Losses are not known: they stay infinite.

    It ends after `steps` server updates, one every `tasks_per_step` arrivals, or with the last arrival at `time`.
    """
    costs = planner.costs
    clients, fragments = costs.shape
    standing, tasks = Standing.start(fragments), np.zeros(fragments, np.int64)
    versions = standing.counts
    turns = np.zeros(clients, np.int64)
    due: list[tuple[float, int, int, int, int]] = []
    staleness: list[int] = []
    now = 0.0

    def dispatch(client: int) -> None:
        turn = int(turns[client])
        rng = generator(seed, "schedule", client, turn)
        j = planner.choose(client, turn, now, planner.feasible(client), standing, rng)
        standing.sent[j] += 1
        end = timing.due(client, turn, now, float(costs[client, j]))
        heapq.heappush(due, (end, int(turns.sum()), client, j, int(versions[j])))
        turns[client] += 1

    for client in range(clients):
        dispatch(client)
    while len(staleness) < steps * tasks_per_step and (time is None or due[0][0] <= time):
        now, _, client, j, version = heapq.heappop(due)
        staleness.append(int(versions[j]) - version)
        standing.staleness[j] = staleness[-1]
        tasks[j] += 1
        if len(staleness) % tasks_per_step == 0:
            versions[j] += 1
        dispatch(client)
    done = staleness or [0]
    return Forecast(now, len(staleness) // tasks_per_step, tuple(tasks.tolist()), float(np.mean(done)), max(done))


def first_round(spec: RunSpec) -> list[Task]:
    """The tasks that a method in rounds gives out first."""
    server = spec.server(lambda kind, t, /, **fields: None)
    return [server.assign(client, 0.0) for client in server.begin()]
