"""The course of a run that follows from its costs, without training."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from fedraa.devices.availability import Timing
from fedraa.devices.fleet import Floats
from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.run_spec import RunSpec
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.dispatch import Dispatch
from fedraa.ledger.due_queue import DueQueue
from fedraa.messages import Task
from fedraa.server.async_rule import ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from schedulers import SchedulerRunner

# Largest number of clients that are simulated one by one. Larger runs are represented by this many clients.
MOST = 20_000
EMPTY = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Forecast:
    """The course of an asynchronous run.

    Attributes:
        time: Time of the last update on the run's clock.
        steps: Server updates.
        tasks: Updates per fragment.
        staleness_mean: Mean staleness, on the fragments' own versions.
        staleness_max: Largest staleness.
    """

    time: float
    steps: int
    tasks: tuple[int, ...]
    staleness_mean: float
    staleness_max: int


def dry_run(
    planner: SchedulerRunner,
    *,
    timing: Timing,
    seed: int,
    steps: int,
    time: float | None = None,
    tasks_per_step: int = 1,
    rule: AsyncRule | None = None,
    resend_cost: Callable[[int, int], float] | None = None,
    concurrency: int | None = None,
) -> Forecast:
    """Run the decisions of an asynchronous run on the virtual clock, with the same random draws and without training.

    Losses are not known and stay infinite.

    Args:
        planner: The scheduler with its costs and its bound.
        timing: Duration of tasks.
        seed: Seed of the run.
        steps: The run ends after this number of server updates.
        time: The run ends at this time.
        tasks_per_step: Updates per server update, if there is no `rule`.
        rule: Decides which updates make a new version. It works on a model without parameters.
        resend_cost: Returns the cost of a task of a client on a fragment that it already holds.
        concurrency: Number of clients that train at a time. None: all.
    """
    clients, fragments = planner.costs.shape
    ledger = AsyncLedger(
        clients=clients,
        seed=seed,
        bad_clients=BadClients(),
        fragments=fragments,
        scheduler=planner,
        concurrency=concurrency,
    )
    model = AsyncModel(EMPTY, clients, fragments, concurrency)
    rule = None if rule is None else rule.bind(model)
    due = DueQueue()
    tasks = [0] * fragments
    staleness: list[int] = []
    now = 0.0

    def send(client: int) -> None:
        decision = ledger.assign(client, now)
        if decision.resent:
            assert resend_cost is not None
            cost = resend_cost(client, decision.fragment)
        else:
            cost = float(planner.costs[client, decision.fragment])
        due.push(timing.due(client, decision.turn, now, cost), decision.task)

    for client in ledger.first_clients():
        send(client)
    while ledger.step < steps and (time is None or due.next_due <= time):
        now, task = due.pop()
        decision = ledger.in_flight[task]
        staleness.append(ledger.staleness(task).fragment)
        tasks[decision.fragment] += 1
        if rule is None:
            result = ApplyResult(0.0, len(staleness) % tasks_per_step == 0)
        else:
            result = rule.apply_update(_update_without_values(decision, staleness[-1]), model)
        done = ledger.commit(task, loss=inf, new_version=result.new_version, keep_task=result.keep_task)
        for client in done.next_clients:
            send(client)
    known = staleness or [0]
    return Forecast(now, ledger.step, tuple(tasks), float(np.mean(known)), max(known))


def _update_without_values(decision: Dispatch, staleness: int) -> ClientUpdate:
    """Return the update of a task on a model without parameters."""
    return ClientUpdate(decision.client, decision.fragment, slice(None), EMPTY, EMPTY, staleness, samples=1, loss=inf)


def first_round(spec: RunSpec) -> tuple[list[Task], int]:
    """Return the tasks of the first round, at most `MOST` of them, and the number of clients in that round."""
    server = make_server(spec, lambda kind, t, /, **fields: None)
    clients = np.fromiter(server.begin(), np.int64)
    costs = make_cost_model(spec).table([spec.traced.widths(spec.traced.full())])[clients, 0]
    return [server.assign(client, 0.0) for client in clients[evenly(costs, MOST)].tolist()], len(clients)


def evenly(costs: Floats, most: int) -> npt.NDArray[np.int64]:
    """Return the positions, ascending, of `most` of the costs [N], spread evenly by rank; all if there are fewer."""
    if len(costs) <= most:
        return np.arange(len(costs))
    by_cost = np.argsort(costs, kind="stable")
    return np.sort(by_cost[np.linspace(0, len(costs) - 1, most).round().astype(np.int64)])
