"""A model of two coordinates, theta = (1, 2) at first, to which an asynchronous rule applies updates."""

from collections.abc import Sequence

import numpy as np

from fedraa.server.async_rule import ApplyResult, AsyncModel, AsyncRule, ClientUpdate

START = (1.0, 2.0)
FIRST, SECOND, THIRD = (1.0, 0.0), (0.5, 0.5), (0.0, -2.0)
One = tuple[int, tuple[float, ...], int]
TRIPLE: list[One] = [(0, FIRST, 0), (0, SECOND, 0), (1, THIRD, 2)]
"""Client, gain, staleness."""


class Played:
    """A rule with the model that it changes, and its results."""

    def __init__(self, rule: AsyncRule, clients: int = 2, start: Sequence[float] = START) -> None:
        self.model = AsyncModel(np.array(start, np.float32), clients, 1)
        self.rule = rule.bind(self.model)
        self.taken: list[ApplyResult] = []
        self.thetas: list[tuple[float, ...]] = []

    def take(
        self, client: int, gain: Sequence[float], staleness: int = 0, sent: Sequence[float] | None = None
    ) -> ApplyResult:
        there = np.array(sent, np.float32) if sent is not None else np.zeros(len(gain), np.float32)
        new = there + np.array(gain, np.float32)
        arrival = ClientUpdate(client, 0, slice(None), new, there, staleness, 10, 1.0)
        taken = self.rule.apply_update(arrival, self.model)
        self.taken.append(taken)
        self.thetas.append(tuple(self.model.params.tolist()))
        return taken

    def all(self, arrivals: Sequence[One]) -> "Played":
        for client, gain, staleness in arrivals:
            self.take(client, gain, staleness)
        return self

    def close(self, *expected: tuple[float, ...]) -> None:
        np.testing.assert_allclose(self.thetas, expected, rtol=0, atol=1e-6)


def random_arrivals(count: int, clients: int, size: int = 5, seed: int = 0) -> list[One]:
    rng = np.random.default_rng(seed)
    return [
        (int(rng.integers(clients)), tuple(rng.standard_normal(size).tolist()), int(rng.integers(7)))
        for _ in range(count)
    ]


def same(ours: AsyncRule, theirs: AsyncRule, arrivals: Sequence[One], clients: int = 3) -> None:
    """Assert that two rules give the same results for the same updates, to rounding."""
    ones, others = (Played(rule, clients, np.ones(5)).all(arrivals) for rule in (ours, theirs))
    np.testing.assert_allclose(ones.thetas, others.thetas, rtol=0, atol=1e-5)
    assert [one.new_version for one in ones.taken] == [one.new_version for one in others.taken]
