"""Tests of server components, such as schedulers. The tests use synthetic inputs."""

from copy import deepcopy
from typing import Any, ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.components.state import save_state
from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.participation import needs_observations
from fedraa.ledger.selection_context import ClientFacts
from fedraa.messages import Index, State
from fedraa.server.async_rule import AsyncModel, ClientUpdate
from fedraa.testing.tester import CLIENTS, COVERED, SIZE, Tester, draw_coordinates, draw_numbers, make_rng
from fedraa.vectors.delta_view import DeltaView
from schedulers import FragmentStats, SchedulerRunner

FRAGMENTS = 3
ROUND = 3
COHORT_CLIENTS = 12


class SchedulerTester(Tester):
    """A test of a scheduler with idle clients that have random costs. The scheduler chooses their fragments."""

    stateful = True
    covers: ClassVar[bool] = False

    def __init__(self, part: Any, size: int = SIZE) -> None:
        super().__init__(deepcopy(part), size)
        self._costs = np.sort(make_rng(0).uniform(0.2, 2, (CLIENTS, FRAGMENTS)), axis=1)
        self._planner = SchedulerRunner.planned(self.part, self._costs)

    def step(self, k: int) -> object:
        draw = make_rng(1, k)
        counts, sent, staleness = (draw.integers(0, 9, FRAGMENTS) for _ in range(3))
        losses = draw.uniform(0, 3, FRAGMENTS)
        standing = FragmentStats(counts, sent, staleness, losses)
        client = k % CLIENTS
        feasible = self._planner.feasible(client)
        arguments = {
            "view.feasible": feasible,
            "view.costs": self._costs,
            "view.counts": counts,
            "view.sent": sent,
            "view.staleness": staleness,
            "view.losses": losses,
        }
        with self.watch_arguments(arguments):
            return self._planner.choose(client, k // CLIENTS, float(k), feasible, standing, draw)

    def state(self) -> State:
        return {"scheduler": save_state(self.part)}

    def restore(self, state: State) -> None:
        self.part.restore(state["scheduler"])
        # After a restore, a server calls `plan` again. The test does the same.
        self._planner.plan(self._costs, None)


class StalenessTester(Tester):
    """A test of a staleness weight with staleness 0 to 7."""

    covers: ClassVar[bool] = False

    def step(self, k: int) -> object:
        with self.watch_arguments({}):
            return self.part(k % 8)


class ParticipationTester(Tester):
    """A test of a participation rule. After each choice of clients, the rule gets the losses of some clients."""

    covers: ClassVar[bool] = False

    def __init__(self, part: Any, size: int = SIZE) -> None:
        super().__init__(deepcopy(part), size)
        self.stateful = needs_observations(part)
        facts = ClientFacts(
            make_rng(0).integers(10, 99, COHORT_CLIENTS), make_rng(1).uniform(1, 9, COHORT_CLIENTS), start_now
        )
        self._selector = ClientSelector(self.part, facts, clients=COHORT_CLIENTS, seed=3)

    def step(self, k: int) -> object:
        with self.watch_arguments({}):
            cohort = self._selector.choose_cohort(k, float(k), ())
        draw = make_rng(2, k)
        for client in cohort[::2]:
            loss, duration = draw.uniform(0, 3, 2).tolist()
            self._selector.record_update(client, client % 2, loss=loss, duration=duration, step=k)
        return list(cohort)

    def state(self) -> State:
        return self._selector.state()

    def restore(self, state: State) -> None:
        self._selector.restore(state)


class AsyncRuleTester(Tester):
    """A test of an asynchronous update rule. The rule applies random client updates to a model."""

    stateful = True
    sized: ClassVar[bool] = True
    own: ClassVar[int] = 9
    state_fields: ClassVar[tuple[str, ...]] = ("_params", "part")

    def __init__(self, part: Any, size: int = SIZE) -> None:
        self._model = AsyncModel(draw_numbers(size, 0), CLIENTS, FRAGMENTS)
        self._start = self._model.params.copy()
        self._seen = np.zeros(size, bool)
        super().__init__(part.bind(self._model), size)
        self._params = self._model.params

    def step(self, k: int) -> object:
        where = draw_coordinates(self.size, 1, k % FRAGMENTS)
        sent, new = (draw_numbers(len(where), which, k) for which in (2, 3))
        update = ClientUpdate(k % CLIENTS, k % FRAGMENTS, where, new, sent, k % 3, 10 + k % CLIENTS, 1 / (1 + k))
        with self.watch_arguments({"update.where": where, "update.new": new, "update.sent": sent}):
            taken = self.part.apply_update(update, self._model)
        self._seen[where] = True
        if (self._model.params != self._start)[~self._seen].any():
            self.broken.setdefault(COVERED, "changes coordinates of the model that no update covers")
        return tuple(taken), self._model.params.tobytes()

    def claimed_bytes(self) -> int | None:
        if not hasattr(self.part, "memory"):
            return 0
        return int(self.part.memory(self.size, CLIENTS))


class AggregatorTester(Tester):
    """A test of an aggregator with rounds of three deltas. Most deltas cover a part of the model, others all of it."""

    stateful = True
    sized: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("part",)

    def __init__(self, part: Any, size: int = SIZE) -> None:
        super().__init__(part.bind(size, CLIENTS), size)

    def step(self, k: int) -> object:
        where = self._draw_coverage(k)
        delta = draw_numbers(len(np.arange(self.size)[where]), 2, k)
        with self.watch_arguments({"contribution.where": where}):
            self.part.add(ClientDelta(k % CLIENTS, DeltaView(where, delta), 1.0 + k % 2, 0.05))
        if k % ROUND != ROUND - 1:
            return None
        coverage = np.zeros(self.size, np.int32)
        for one in range(k - ROUND + 1, k + 1):
            coverage[self._draw_coverage(one)] += 1
        with self.watch_arguments({"totals.coverage": coverage}):
            mean, moved = self.part.finish(RoundTotals(coverage, 0.05))
        if not self.part.keeps and (moved & (coverage == 0)).any():
            self.broken.setdefault(
                COVERED,
                "moves coordinates that no client covered; return totals.covered as the mask, or set `keeps` if the "
                "aggregator keeps earlier updates of these coordinates",
            )
        return mean[moved].tobytes(), moved.tobytes()

    def claimed_bytes(self) -> int | None:
        return int(self.part.memory(self.size, CLIENTS))

    def _draw_coverage(self, k: int) -> Index | slice:
        if k % (2 * ROUND) == ROUND:
            return slice(None)
        return draw_coordinates(self.size, 1, k)


class OptimizerTester(Tester):
    """A test of a server optimizer with random mean deltas."""

    stateful = True
    sized: ClassVar[bool] = True
    own: ClassVar[int] = 4
    state_fields: ClassVar[tuple[str, ...]] = ("_params", "part")

    def __init__(self, part: Any, size: int = SIZE) -> None:
        super().__init__(part.bind(size), size)
        self._params = draw_numbers(size, 0)

    def step(self, k: int) -> object:
        delta, moved = draw_numbers(self.size, 1, k), make_rng(2, k).random(self.size) < 0.5
        before = self._params.copy()
        with self.watch_arguments({"delta": delta, "moved": moved}):
            self.part.step(self._params, delta, moved)
        if (before != self._params)[~moved].any():
            self.broken.setdefault(COVERED, "moves coordinates outside `moved`, which no client covered")
        return self._params.tobytes()


def start_now(client: int, now: float) -> float:
    """Return the time at which a client becomes available: now."""
    return now
