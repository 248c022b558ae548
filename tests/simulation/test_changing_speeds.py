"""Devices that change speed: Gre-RAA with costs learned from real durations, and Gre-RAA with the first costs."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedraa import Dataset, Experiment
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server
from fedraa.messages import Task, Update
from fedraa.server.async_server import AsyncServer

# The runs of these tests take seconds.
pytestmark = pytest.mark.xdist_group("drift")

CLIENTS, DRIFT, END = 10, 4.0, 18.0


@dataclass(frozen=True)
class Line:
    """A task with its start, its end, and the fragments that were feasible for its client."""

    left: float
    back: float
    client: int
    fragment: int
    feasible: tuple[int, ...]


def simulate(learn: bool, slowdown: Callable[[int, float], float]) -> list[Line]:
    """Simulate a run without training. A duration is the modelled duration times `slowdown` (client, start)."""
    x, y = np.random.default_rng(0).normal(size=(1000, 10)).astype(np.float32), np.arange(1000) % 2
    experiment = Experiment(method="fed-raa", clients=CLIENTS, hidden=(100,), engine="local", out=Path("nowhere"))
    spec = build_run(experiment, dataset=Dataset("even", x, y, x[:20], y[:20], 2))
    feasible: dict[object, tuple[int, ...]] = {}

    def record(kind: str, t: float, /, **fields: Any) -> None:
        if kind == "dispatch":
            feasible[fields["task"]] = tuple(fields["feasible_fragments"])

    server = make_server(spec, record)
    assert isinstance(server, AsyncServer)
    # Costs are learned only on the wall clock.
    server._learn = learn
    due: list[tuple[float, int]] = []
    out: dict[int, tuple[Task, float]] = {}

    def send(client: int, now: float) -> None:
        task = server.assign(client, now)
        out[task.id] = (task, now)
        heapq.heappush(due, (now + task.cost * slowdown(client, now), task.id))

    for client in server.begin():
        send(client, 0.0)
    lines = []
    while due[0][0] < END:
        now, number = heapq.heappop(due)
        task, left = out.pop(number)
        answer = Update(number, task.client, task.fragment, task.version, task.params, steps=1, loss=0.0, seconds=0.0)
        for client in server.commit(answer, now):
            send(client, now)
        lines.append(Line(left, now, task.client, task.fragment, feasible[number]))
    return lines


def swap_speeds(client: int, now: float) -> float:
    """Return the slowdown with which devices of speed 1 get speed 6, and devices of speed 3 get speed 1/2."""
    return 1.0 if now < DRIFT else (1 / 6 if client < CLIENTS // 2 else 6.0)


@pytest.fixture(scope="module")
def late_tasks() -> dict[bool, list[Line]]:
    """Return the tasks that started long after the change, for learned costs and for the first costs."""
    return {learn: [line for line in simulate(learn, swap_speeds) if line.left > 2 * DRIFT] for learn in (True, False)}


def test_learned_costs_bound_the_delay_and_train_every_fragment(late_tasks: dict[bool, list[Line]]) -> None:
    """Learned costs bound the delay, and every fragment gets updates.

    With the first costs slow devices get large fragments.
    """
    longest = {learn: max(line.back - line.left for line in lines) for learn, lines in late_tasks.items()}
    fewest = {learn: min(Counter(line.fragment for line in lines).values()) for learn, lines in late_tasks.items()}
    assert longest[True] < 0.6 * longest[False]
    assert fewest[True] > 5 * fewest[False]


def test_feasible_fragments_follow_the_changed_speeds(late_tasks: dict[bool, list[Line]]) -> None:
    """With learned costs the devices that became slow lose the largest fragment, and the fast devices get it."""
    for learn, lines in late_tasks.items():
        can = [{j for line in lines if line.client // 5 == half for j in line.feasible} for half in (0, 1)]
        assert (3 in can[0], 3 in can[1]) == (learn, not learn)


def test_feasible_fragments_stay_if_all_devices_slow_down_equally() -> None:
    """If all devices become four times slower, the bound is four times as large, and the feasible sets stay."""
    lines = simulate(True, lambda client, now: 1.0 if now < DRIFT else 4.0)
    before, after = ([line for line in lines if keep(line)] for keep in (_early, _late))
    assert {(line.client, line.feasible) for line in before} == {(line.client, line.feasible) for line in after}


def _early(line: Line) -> bool:
    return line.left < DRIFT / 2


def _late(line: Line) -> bool:
    return line.left > 3 * DRIFT
