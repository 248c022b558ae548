"""A test of the state that a method keeps at the server, with synthetic updates."""

from typing import Any, ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta
from fedraa.composition.method import Method
from fedraa.messages import Update, values_of
from fedraa.server.round_state import RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Assignment, Submodel
from fedraa.testing.server_testers import ROUND, AsyncRuleTester
from fedraa.testing.tester import CLIENTS, COVERED, SIZE, Tester, draw_numbers, make_rng
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.index_ranges import where_of


def start_method_tester(part: Method, size: int = SIZE) -> Tester:
    """Return a tester of the part of a method that keeps state at the server: the update rule or the round state."""
    if isinstance(part.update, Mean):
        return RoundStateTester(part, size)
    return AsyncRuleTester(part.update, size)


class RoundStateTester(Tester):
    """A test of a method's round state, with three random updates per round."""

    stateful = True
    sized: ClassVar[bool] = True
    own: ClassVar[int] = 12
    state_fields: ClassVar[tuple[str, ...]] = ("_params", "_sum", "_counts", "part")

    def __init__(self, part: Any, size: int = SIZE) -> None:
        self._params = draw_numbers(size, 0)
        run = RoundStateContext(
            size=size,
            clients=CLIENTS,
            grad_mix=part.local.grad_mix,
            params=self._params,
            steps=4.0,
            rounds=ROUND,
            cohort=float(ROUND),
        )
        super().__init__(part.update.auxiliary.bind(run), size)
        self._sum = np.zeros(size, np.float32)
        self._counts = np.zeros(size, np.int32)

    def step(self, k: int) -> object:
        client = k % CLIENTS
        mask = make_rng(1, k).random(self.size) < 0.5
        assignment = Assignment(0, Submodel((), None), mask)
        extras = {name: values_of(extra).tobytes() for name, extra in self.part.send(client, assignment).items()}
        sent = self._params.copy()
        new = sent + np.float32(0.1) * draw_numbers(self.size, 2, k) * mask
        change = DeltaView(where_of(assignment.submodel), new, sent, mask)
        replies = {name: np.abs(draw_numbers(self.size, 3, k)) for name in self.part.asks}
        update = Update(k, client, 0, k // ROUND, new, 4, 1.0, 0.0, replies)
        contribution = ClientDelta(client, change, 1.0 + k % 2, 0.05, steps=4, path_length=0.2)
        arguments = {"contribution.delta": contribution.delta, "update.params": new, "assignment.mask": mask, **replies}
        with self.watch_arguments(arguments):
            self.part.receive(contribution, assignment, update)
        self._sum[mask] += contribution.delta
        self._counts += mask
        if k % ROUND == ROUND - 1:
            self._close()
        return extras, self._params.tobytes()

    def _close(self) -> None:
        moved = self._counts > 0
        delta = self._sum / np.maximum(self._counts, 1).astype(np.float32)
        np.add(self._params, delta, out=self._params, where=moved)
        before = self._params.copy()
        with self.watch_arguments({"delta": delta, "moved": moved}):
            self.part.close(self._params, delta, moved, 0.2)
        if (before != self._params)[~moved].any():
            self.broken.setdefault(COVERED, "moves coordinates outside `moved`, which no client covered")
        self._sum.fill(0)
        self._counts.fill(0)

    def claimed_bytes(self) -> int | None:
        return int(self.part.memory(self.size, CLIENTS))
