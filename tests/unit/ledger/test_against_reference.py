"""The ledgers decide as the reference implementation does, in random sequences of assign, commit and drop."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference.decision_checker import AsyncChecker, RoundChecker
from reference.task_clock import Tasks

from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.concurrency import Concurrency
from fedraa.ledger.dispatch import Committed, Dispatch, Dropped
from fedraa.ledger.participation import Sample, draw_cohort
from fedraa.ledger.round_ledger import RoundLedger
from fedraa.replay.log_line import Line
from fedraa.rng import generator
from schedulers import SCHEDULERS, Scheduler, SchedulerRunner
from schedulers.protocol import SchedulingContext

SEED, CLIENTS, FRAGMENTS = 11, 5, 3
SAMPLES = (1, 5, 2, 8, 3)


@dataclass
class Curious(Scheduler):
    """A custom scheduler with choices that depend on all of its inputs and on its state."""

    calls: int = 0

    def choose(self, view: SchedulingContext, rng: np.random.Generator) -> int:
        self.calls += 1
        finite = np.where(np.isfinite(view.losses), view.losses, 9)
        scores = view.counts + 2 * view.sent + 3 * view.staleness + finite + rng.random(FRAGMENTS)
        return int(view.feasible[int(scores[view.feasible].argmin())])


ALL_SCHEDULERS: dict[str, Any] = {**SCHEDULERS, "curious": Curious, "none": None}
RESULTS = ("version", "no version", "same task", "failure", "new costs", "resume")
Moves = list[tuple[int, str]]
MOVES = st.lists(st.tuples(st.integers(0, CLIENTS - 1), st.sampled_from(RESULTS)), max_size=40)
EXAMPLES = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass
class Setting:
    """The rules of a run in the form that the reference reads."""

    scheduler: str
    retries: int
    limit: int | None = None
    costs_changed: bool = False
    tables: int = 0
    experiment: Any = field(init=False)
    clients: int = CLIENTS
    fragments: int = FRAGMENTS
    samples: Sequence[int] = SAMPLES

    def __post_init__(self) -> None:
        self.experiment = SimpleNamespace(seed=SEED, client_retries=self.retries, on_bad_client="skip")

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(CLIENTS, self.limit, SEED)

    def costs(self) -> Any:
        return generator(SEED, "costs", self.tables).uniform(1, 3, (CLIENTS, FRAGMENTS))

    def planner(self) -> SchedulerRunner | None:
        make = ALL_SCHEDULERS[self.scheduler]
        if make is None:
            return None
        return SchedulerRunner.planned(make(), self.costs())

    def cohort(self, round: int, quarantined: Any) -> Sequence[int]:
        return draw_cohort(Sample(3), CLIENTS, round, SEED, quarantined)

    def given(self) -> dict[str, Any]:
        """Return the arguments that both ledgers take."""
        return {
            "clients": CLIENTS,
            "seed": SEED,
            "bad_clients": BadClients(self.retries),
            "fragments": FRAGMENTS if ALL_SCHEDULERS[self.scheduler] else 1,
            "scheduler": self.planner(),
        }

    def async_ledger(self) -> AsyncLedger:
        return AsyncLedger(**self.given(), concurrency=self.limit)

    def round_ledger(self) -> RoundLedger:
        selector = ClientSelector(Sample(3), None, clients=CLIENTS, seed=SEED)
        return RoundLedger(**self.given(), selector=selector, samples=SAMPLES)


def line(kind: str, **fields: object) -> Line:
    return Line(1, {"kind": kind, "t": 0.0, **fields})


def dispatched(decision: Dispatch) -> Line:
    return line(
        "dispatch",
        task=decision.task,
        client=decision.client,
        fragment=decision.fragment,
        version=decision.version,
        step=decision.step,
        feasible_fragments=list(decision.feasible),
        fragment_updates=list(decision.fragment_updates),
        bytes_down=0 if decision.resent else 4,
    )


def committed(done: Committed, loss: float, weight: float) -> Line:
    return line(
        "commit",
        task=done.dispatch.task,
        client=done.dispatch.client,
        fragment=done.dispatch.fragment,
        base_version=done.dispatch.version,
        version=done.version,
        staleness=done.staleness.fragment,
        staleness_total=done.staleness.total,
        train_loss=loss,
        weight=weight,
    )


def dropped(done: Dropped) -> Line:
    decision = done.dispatch
    return line("drop", task=decision.task, client=decision.client, fragment=decision.fragment, action=done.action)


def sampled(scheduler: str, client: int) -> int | None:
    """Return the label of a client's sampled submodel; None if a scheduler chooses."""
    return 7 * client if scheduler == "none" else None


@pytest.mark.parametrize("scheduler", ALL_SCHEDULERS)
@EXAMPLES
@given(moves=MOVES, limit=st.sampled_from([None, 1, 2, 4]), retries=st.integers(0, 2))
def test_async_ledger_decides_as_the_reference(scheduler: str, moves: Moves, limit: int | None, retries: int) -> None:
    setting = Setting(scheduler, retries, limit)
    ledger = setting.async_ledger()
    reference = AsyncChecker(setting, Tasks(setting, setting.concurrency.first_clients()))
    waiting = deque(ledger.first_clients())
    for pick, result in [*moves, (0, "version")]:
        while waiting:
            client = waiting.popleft()
            decision = ledger.assign(client, 0.0, fragment=sampled(scheduler, client))
            reference.dispatch(dispatched(decision))
        assert ledger.in_flight.keys() == reference._tasks.flights.keys()
        if not ledger.in_flight:
            break
        task = sorted(ledger.in_flight)[pick % len(ledger.in_flight)]
        if result == "failure":
            failed = ledger.drop(task)
            reference.drop(dropped(failed))
            waiting.extend(failed.next_clients)
        elif result == "resume":
            resumed = setting.async_ledger()
            resumed.restore(ledger.state())
            ledger = resumed
        else:
            loss = 1 / (1 + task)
            done = ledger.commit(task, loss=loss, new_version=result != "no version", keep_task=result == "same task")
            setting.costs_changed = result == "new costs" and scheduler not in ("none", "curious")
            if setting.costs_changed:
                setting.tables += 1
                ledger.use_costs(setting.costs(), None)
            reference.commit(committed(done, loss, weight=0.0))
            waiting.extend(done.next_clients)
        assert list(waiting) == list(reference._tasks.waiting)
        assert ledger.step == reference.step
        assert ledger.bad_clients.left_out == reference._tasks.bad_clients.left_out


@pytest.mark.parametrize("scheduler", [name for name in ALL_SCHEDULERS if name != "curious"])
@EXAMPLES
@given(moves=MOVES, retries=st.integers(0, 2))
def test_round_ledger_decides_as_the_reference(scheduler: str, moves: Moves, retries: int) -> None:
    setting = Setting(scheduler, retries)
    ledger = setting.round_ledger()
    reference = RoundChecker(setting, Tasks(setting, setting.cohort(0, ())))
    waiting = deque(ledger.cohort)
    for pick, result in moves:
        while waiting:
            client = waiting.popleft()
            reference.dispatch(dispatched(ledger.assign(client, 0.0, fragment=sampled(scheduler, client))))
        if not ledger.in_flight:
            break
        task = sorted(ledger.in_flight)[pick % len(ledger.in_flight)]
        complete = False
        if result == "failure":
            failed = ledger.drop(task)
            complete = failed.round_complete
            reference.drop(dropped(failed))
        elif result == "resume":
            resumed = setting.round_ledger()
            resumed.restore(ledger.state())
            ledger = resumed
        else:
            done = ledger.commit(task, loss=0.5)
            complete = done.round_complete
            weight = ledger.weight(done.dispatch.client) / ledger.weight_sum
            reference.commit(committed(done, 0.5, weight))
        assert complete == (reference.due == "round")
        if complete:
            reported = ledger.reported
            round = ledger.step
            fragments = sorted(ledger.close_round())
            reference.round(line("round", round=round, clients=reported, fragments=fragments))
            waiting.extend(ledger.begin_round(0.0))
        assert list(waiting) == list(reference._tasks.waiting)
        assert ledger.step == reference.step


def test_a_task_that_may_not_be_resent_is_chosen_again() -> None:
    ledger = Setting("gre-raa", 0).async_ledger()
    for client in ledger.first_clients():
        ledger.assign(client, 0.0)
    [again] = ledger.commit(0, loss=1.0, new_version=True, keep_task=True).next_clients
    assert ledger.kept_tasks[again].task == 0
    decision = ledger.assign(again, 0.0, may_resend=False)
    assert (decision.resent, decision.step) == (False, 1)
    assert not ledger.kept_tasks
