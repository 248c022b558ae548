"""The class ClientSelector. It passes observations to a Selection, and checks the clients that are chosen."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from fedraa.components.calls import convert_errors
from fedraa.components.state import save_state
from fedraa.components.text import is_built_in
from fedraa.errors import InputError, no_effect_error, short_text
from fedraa.ledger.participation import Selection, check_cohort, count_of, draw_cohort, needs_observations
from fedraa.ledger.selection_context import ClientFacts, ClientStats
from fedraa.messages import State
from fedraa.numbers import format_count, round_up
from fedraa.rng import generator


class ClientSelector:
    """The choice of the clients of a round, or of an asynchronous server's next client.

    Args:
        selection: Chooses the clients. Its state may change with each choice.
        facts: Samples, modelled task times and availability of the clients. None if `selection` is a Participation,
            which does not use them.
        clients: Number of clients.
        seed: Seed of the run.
        over_selection: Factor by which a round starts more clients than it needs.
        single_client_rounds: Number of rounds at the start of the run in which only one client trains: the one with
            the lowest number that is not quarantined.
        field: The field of the experiment that contains the selection, for errors.
    """

    def __init__(
        self,
        selection: Selection,
        facts: ClientFacts | None,
        *,
        clients: int,
        seed: int,
        over_selection: float = 1.0,
        single_client_rounds: int = 0,
        field: str = "participation",
    ) -> None:
        self._field = field
        self._selection = selection
        self._clients = clients
        self._seed = seed
        self._single_client_rounds = single_client_rounds
        self.stats: ClientStats | None = None
        if needs_observations(selection):
            assert facts is not None
            self.stats = ClientStats(facts)
        self.needed: int | None = None
        """The number of updates after which a round ends, or None if a round waits for all of its clients."""
        if over_selection > 1:
            self.needed = _needed_count(selection, clients, over_selection)
            started = min(clients, round_up(over_selection * self.needed))
            if started == self.needed:
                remedy = "give a participation of fewer clients, or leave it out"
                raise no_effect_error("over_selection", over_selection, "rounds of all clients", remedy)
            if not needs_observations(selection):
                self._selection = replace(selection, count=started)  # type: ignore[type-var]
            self._started = started
        else:
            self._started = min(clients, count_of(selection) or clients)

    def choose_cohort(self, round: int, now: float, left_out: Collection[int]) -> Sequence[int]:
        """Return the clients of a round, ascending. Only `Poisson` may choose no clients.

        Args:
            round: The round, from 0.
            now: Time on the run's clock.
            left_out: Quarantined clients.
        """
        if round < self._single_client_rounds:
            return [next(client for client in range(self._clients) if client not in left_out)]
        if not needs_observations(self._selection):
            return draw_cohort(self._selection, self._clients, round, self._seed, left_out)
        rng = generator(self._seed, "selection", round)
        return self._choose(self._started, rng, step=round, now=now, excluded=left_out)

    def choose_first(self, count: int) -> Sequence[int]:
        """Return the clients that an asynchronous server starts first."""
        rng = generator(self._seed, "selection start")
        return self._choose(count, rng, step=0, now=0.0, excluded=(), exactly=True)

    def choose_next(self, task: int, *, step: int, now: float, excluded: Collection[int]) -> Sequence[int]:
        """Return an asynchronous server's next client, or no client if all are excluded.

        Args:
            task: The number of the ended task.
            step: Server step.
            now: Time on the run's clock.
            excluded: Clients that train, and quarantined clients.
        """
        if len(excluded) == self._clients:
            return ()
        rng = generator(self._seed, "selection", task)
        return self._choose(1, rng, step=step, now=now, excluded=excluded, exactly=True)

    def record_update(self, client: int, size_class: int, *, loss: float, duration: float, step: int) -> None:
        """Record an update of a client. `ClientStats.record_update` documents the arguments."""
        if self.stats is not None:
            self.stats.record_update(client, size_class, loss=loss, duration=duration, step=step)

    def record_lost(self, client: int, elapsed: float) -> None:
        """Record a task of a client that was lost `elapsed` units of time after its dispatch."""
        if self.stats is not None:
            self.stats.record_lost(client, elapsed)

    def state(self) -> State:
        if self.stats is None:
            return {}
        return {"selection": save_state(self._selection), "stats": self.stats.state()}

    def restore(self, state: State) -> None:
        if self.stats is not None:
            self._selection.restore(state["selection"])
            self.stats.restore(state["stats"])

    def _choose(
        self,
        count: int,
        rng: np.random.Generator,
        *,
        step: int,
        now: float,
        excluded: Collection[int],
        exactly: bool = False,
    ) -> Sequence[int]:
        """Return the clients that the selection chooses, ascending.

        Args:
            count: Number of clients to choose.
            rng: The source of randomness.
            step: Server step, or round.
            now: Time on the run's clock.
            excluded: Clients that cannot be chosen.
            exactly: True if the server needs exactly `count` clients.

        Raises:
            InputError: The selection chooses no client, a client that is no candidate, or a wrong number of clients.
        """
        assert self.stats is not None
        is_candidate = np.ones(self._clients, bool)
        is_candidate[list(excluded)] = False
        candidates = np.flatnonzero(is_candidate)
        view = self.stats.view(candidates, min(count, len(candidates)), step=step, now=now)
        with convert_errors(self._field, self._selection):
            chosen = check_cohort(self._selection, self._selection.choose(view, rng), self._clients, field=self._field)
        name = type(self._selection).__name__
        if not chosen or not is_candidate[chosen].all():
            problem = f"{name} chose {short_text(chosen)}"
            raise InputError(self._field, problem, expected="at least one client, all from view.candidates")
        if exactly and len(chosen) != view.count:
            problem = f"{name} chose {format_count(len(chosen), 'client')}"
            raise InputError(self._field, problem, expected=f"{view.count}, as in view.count")
        return chosen


def _needed_count(selection: Selection, clients: int, over_selection: float) -> int:
    """Return the selection's number of clients per round. Raises InputError if the selection has no such number."""
    count = count_of(selection)
    if count is None or not is_built_in(type(selection)):
        problem = "the participation has no number of clients per round"
        hint = f"give a participation such as sample:{max(1, clients // 2)}"
        raise InputError("over_selection", problem, got=over_selection, hint=hint)
    return count
