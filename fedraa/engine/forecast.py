"""A forecast of an asynchronous run: the order and the times of its updates, without training."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from fedraa.components.text import describe_component, is_foreign
from fedraa.devices.availability import Timing
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.dispatch import Dispatch
from fedraa.ledger.due_queue import DueQueue
from fedraa.server.async_rule import ApplyResult, AsyncRule, model_without_values, update_without_values


@dataclass(frozen=True)
class Forecast:
    """The predicted course of an asynchronous run.

    Attributes:
        time: Time of the last update on the run's clock.
        steps: Server updates.
        tasks: Number of updates of each fragment.
        staleness_mean: Mean staleness, counted in versions of the fragment.
        staleness_max: Largest staleness.
        clients: The client of each update, in the order of the updates.
        stalled: True if the run stops before its limit because no device that trains will be available again.
    """

    time: float
    steps: int
    tasks: tuple[int, ...]
    staleness_mean: float
    staleness_max: int
    clients: tuple[int, ...] = ()
    stalled: bool = False


def dry_run(
    ledger: AsyncLedger,
    rule: AsyncRule,
    timing: Timing,
    cost: Callable[[Dispatch, float], float],
    *,
    steps: int,
    time: float | None = None,
) -> Forecast:
    """Simulate an asynchronous run on the virtual clock without training, with the real run's random draws.

    Losses are unknown and stay infinite. A custom rule is not called: the forecast assumes a new version of the model
    after every `rule.per_step` updates.

    Args:
        ledger: The state of scheduling decisions at the start of the run.
        rule: The rule by which the server applies updates.
        timing: The timing model, which gives the duration of each task.
        cost: A function of a dispatch and its time. It returns the cost of the task.
        steps: The run ends after this number of server updates.
        time: The run ends at this time, or when no client may train.
    """
    model = model_without_values(ledger)
    applied = None
    if not is_foreign(describe_component(rule)):
        applied = rule.bind(model)
    due = DueQueue()
    tasks = [0] * model.fragments
    staleness: list[int] = []
    clients: list[int] = []
    now = 0.0

    def send_task(client: int) -> None:
        task = ledger.assign(client, now)
        due.push(timing.due(client, task.turn, now, cost(task, now)), task.task)

    for client in ledger.first_clients():
        send_task(client)
    end = inf if time is None else time
    while due and ledger.step < steps and due.next_due <= end and due.next_due < inf:
        now, number = due.pop()
        update = update_without_values(ledger, ledger.in_flight[number])
        # The staleness of the weight may be on another clock.
        staleness.append(ledger.staleness(number).fragment)
        tasks[update.fragment] += 1
        clients.append(update.client)
        if applied is None:
            result = ApplyResult(0.0, new_version=len(staleness) % rule.per_step == 0)
        else:
            result = applied.apply_update(update, model)
        done = ledger.commit(number, loss=inf, new_version=result.new_version, keep_task=result.keep_task)
        if applied is not None and update.client in ledger.bad_clients.excluded:
            applied.leave(update.client)
        # A run ends before it sends more tasks.
        if ledger.step < steps:
            for client in done.next_clients:
                send_task(client)
    known = staleness or [0]
    stalled = bool(due) and ledger.step < steps and due.next_due <= end
    return Forecast(now, ledger.step, tuple(tasks), float(np.mean(known)), max(known), tuple(clients), stalled)
