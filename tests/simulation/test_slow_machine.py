"""The wall clock on a slow machine: the start of workers and their queue do not count as slowness of the devices.

The time is simulated. Two workers start after seconds, the first task of one takes longer, and every other task takes
the same time at a worker, because small models cost about the same.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedraa import Dataset, Experiment
from fedraa.api import replay
from fedraa.engine import run_clock, session
from fedraa.engine.build import build_run
from fedraa.engine.executor import FinishedEvaluation
from fedraa.messages import Evaluation, Fault, State, Task, Update, Vector
from fedraa.objectives import MetricSpec
from fedraa.rundir.history import History

START_S, FIRST_TASK_S, TASK_S = 12.0, 10.0, 0.3
CLIENTS = 10


class Time:
    """A stand-in for the module `time`, whose clock the machine moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Machine:
    """An executor with two workers that trains nothing. Its tasks take simulated time."""

    workers = 2

    def __init__(self, time: Time) -> None:
        self._time = time
        self._free_at = [START_S] * self.workers
        self._first_task_s = [FIRST_TASK_S, TASK_S]
        self._arrivals: list[tuple[float, Update]] = []

    def await_workers(self, timeout: float) -> bool:
        if self._time.now < START_S:
            self._time.now += timeout
        return self._time.now >= START_S

    def share(self, params: Vector) -> Vector:
        return params

    def submit(self, task: Task, due: float) -> None:
        worker = int(np.argmin(self._free_at))
        seconds = self._first_task_s[worker]
        self._first_task_s[worker] = TASK_S
        end = max(self._free_at[worker], self._time.now) + seconds
        self._free_at[worker] = end
        update = Update(task.id, task.client, task.fragment, task.version, task.params, 1, 0.0, seconds)
        self._arrivals.append((end, update))

    def ready_outcomes(self, timeout: float) -> list[Update | Fault]:
        self._time.now += timeout
        arrived = [update for at, update in self._arrivals if at <= self._time.now]
        self._arrivals = [(at, update) for at, update in self._arrivals if at > self._time.now]
        return list(arrived)

    def evaluate(self, params: Vector, kept: State) -> FinishedEvaluation:
        return FinishedEvaluation(params, kept, Evaluation(dict.fromkeys(MetricSpec().columns, 0.0)))

    def busy(self) -> tuple[int, int]:
        return self.workers, self.workers

    def close(self) -> None: ...


def simulate(directory: Path, time: Time, **flags: Any) -> History:
    x, y = np.random.default_rng(0).normal(size=(1000, 10)).astype(np.float32), np.arange(1000) % 2
    # The first half of the devices is three times as fast.
    settings = {"compute": "3:0.5,1:0.5", "hidden": (100,), "updates": 200, "eval_every": 200, "engine": "local"}
    experiment = Experiment(method="fed-raa", clients=CLIENTS, **settings | flags)
    directory.mkdir()
    spec = build_run(experiment, dataset=Dataset("even", x, y, x[:20], y[:20], 2))
    session.RunSession(spec, directory, Machine(time), threading.Event()).execute()
    return History(directory)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(run_clock, "time", time)
    return time


def test_the_fastest_devices_keep_the_largest_fragment(time: Time, tmp_path: Path) -> None:
    history = simulate(tmp_path / "run", time, clock="wall")
    for fast in range(CLIENTS // 2):
        tasks = [line for line in history.lines() if line["kind"] == "dispatch" and line["client"] == fast]
        largest = max(tasks[0]["feasible_fragments"])
        assert largest == 3
        assert len(tasks) > 5
        assert all(largest in line["feasible_fragments"] for line in tasks)


def test_the_clock_starts_when_the_workers_have_started(time: Time, tmp_path: Path) -> None:
    history = simulate(tmp_path / "run", time, clock="wall")
    commits = [line for line in history.lines() if line["kind"] == "commit"]
    # The workers start after 12 s. Task 0 takes 10 s, and tasks 1 and 2 take 0.3 s each at the other worker.
    first = {line["task"]: line for line in commits if line["task"] < 3}
    assert [first[task]["t"] for task in range(3)] == pytest.approx([10, 0.3, 0.6], abs=0.15)
    assert [first[task]["seconds"] for task in range(3)] == [FIRST_TASK_S, TASK_S, TASK_S]
    assert [first[task]["waited"] for task in range(3)] == pytest.approx([0, 0, 0.3], abs=0.15)


def test_log_with_learned_costs_replays(time: Time, tmp_path: Path) -> None:
    assert "consistent" in replay(simulate(tmp_path / "run", time, clock="wall").directory)
