"""What a run will take, by its costs alone: nothing is trained."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from fedraa.devices.availability import Timing
from fedraa.devices.fleet import Floats
from fedraa.engine.run_spec import RunSpec
from fedraa.ledger.concurrency import Concurrency
from fedraa.messages import Task
from fedraa.rng import generator
from fedraa.server.async_rule import Arrival, AsyncModel, AsyncRule, Taken
from schedulers import Planner, Standing

MOST = 20_000  # clients at a time that are looked at one by one; of more, so many stand for all


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
    rule: AsyncRule | None = None,
    again: Callable[[int, int], float] | None = None,
    concurrency: int | None = None,
) -> Forecast:
    """The asynchronous run of a planned scheduler, with the very draws that the real one makes on the virtual clock.

    Losses are not known: they stay infinite.

    It ends after `steps` server updates, one every `tasks_per_step` arrivals, or with the last arrival at `time`. A
    `rule` tells itself which arrivals are one, at work on a model without parameters; `again` gives what a
    task costs a client on a fragment that it has already. At most `concurrency` clients train at a time (None: all).
    """
    costs = planner.costs
    clients, fragments = costs.shape
    standing, tasks = Standing.start(fragments), np.zeros(fragments, np.int64)
    versions = standing.counts
    turns = np.zeros(clients, np.int64)
    due: list[tuple[float, int, int, int, int]] = []
    staleness: list[int] = []
    now = 0.0
    nothing = np.zeros(0, np.float32)
    model = AsyncModel(nothing, clients, fragments, concurrency)
    rule = None if rule is None else rule.bind(model)
    who, busy, kept = Concurrency(clients, concurrency, seed), set[int](), dict[int, tuple[int, int]]()
    numbers = count()

    def dispatch(client: int) -> None:
        turn = int(turns[client])
        if (held := kept.pop(client, None)) is None:
            rng = generator(seed, "schedule", client, turn)
            j = planner.choose(client, turn, now, planner.feasible(client), standing, rng)
            version, cost = int(versions[j]), float(costs[client, j])
        else:
            assert again is not None
            j, version = held
            cost = again(client, j)
        standing.sent[j] += 1
        end = timing.due(client, turn, now, cost)
        heapq.heappush(due, (end, next(numbers), client, j, version))
        turns[client] += 1
        busy.add(client)

    def taken(client: int, j: int) -> Taken:
        if rule is None:
            return Taken(0.0, len(staleness) % tasks_per_step == 0)
        return rule.take(Arrival(client, j, slice(None), nothing, nothing, staleness[-1], 1, np.inf), model)

    for client in who.first():
        dispatch(client)
    while int(versions.sum()) < steps and (time is None or due[0][0] <= time):
        now, number, client, j, version = heapq.heappop(due)
        staleness.append(int(versions[j]) - version)
        standing.staleness[j] = staleness[-1]
        tasks[j] += 1
        _, advanced, held = taken(client, j)
        versions[j] += advanced
        if held:
            kept[client] = (j, version)
        busy.discard(client)
        for following in who.next(client, number, busy):
            dispatch(following)
    done = staleness or [0]
    return Forecast(now, int(versions.sum()), tuple(tasks.tolist()), float(np.mean(done)), max(done))


def first_round(spec: RunSpec) -> tuple[list[Task], int]:
    """The tasks that a method in rounds gives out first, and how many these are: of very many `MOST` are made."""
    server = spec.server(lambda kind, t, /, **fields: None)
    clients = np.fromiter(server.begin(), np.int64)
    costs = spec.costs().table([spec.traced.widths(spec.traced.full())])[clients, 0]
    return [server.assign(client, 0.0) for client in clients[evenly(costs, MOST)].tolist()], len(clients)


def evenly(costs: Floats, most: int) -> npt.NDArray[np.int64]:
    """The places of `most` of the costs [N] from the least to the greatest, both among them, ascending; or all."""
    if len(costs) <= most:
        return np.arange(len(costs))
    by_cost = np.argsort(costs, kind="stable")
    return np.sort(by_cost[np.linspace(0, len(costs) - 1, most).round().astype(np.int64)])
