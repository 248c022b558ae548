"""Evaluations start at their steps, are recorded in order, and end the run if one of them reaches the target."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedraa.engine.client_results import ClientResults
from fedraa.engine.evaluation_queue import MAX_PENDING_EVALS, EvaluationQueue
from fedraa.messages import Evaluation, Vector
from fedraa.objectives import Target


class SlowEvaluation:
    """An evaluation that is ready when the test sets its accuracy."""

    def __init__(self, params: Vector) -> None:
        self.params = params
        self.kept: dict[str, Any] = {}
        self.accuracy: float | None = None

    def result(self, timeout: float) -> Evaluation | None:
        if self.accuracy is None:
            return None
        return Evaluation({"accuracy": self.accuracy, "loss": 1 - self.accuracy}, seconds=0.5)


class Run:
    """A queue with an executor and a log that keep the evaluations of a test."""

    def __init__(self, *, target: Target | None = None, every: int = 5) -> None:
        self.started: list[SlowEvaluation] = []
        self.recorded: list[tuple[int, float]] = []
        executor = SimpleNamespace(evaluate=self._evaluate)
        log = SimpleNamespace(evaluated=lambda step, t, evaluation: self.recorded.append((step, t)))
        self.queue = EvaluationQueue(
            cast(Any, executor),
            cast(Any, log),
            every=every,
            main_metric="accuracy",
            target=target,
            client_results=ClientResults(),
        )

    def _evaluate(self, params: Vector, kept: dict[str, Any]) -> SlowEvaluation:
        evaluation = SlowEvaluation(params.copy())
        self.started.append(evaluation)
        return evaluation

    def start(self, step: int, t: float) -> None:
        server = SimpleNamespace(step=step, params=np.full(3, step, np.float32), task_table=None)
        self.queue.start(cast(Any, server), t)


def test_due_is_true_at_multiples_until_the_evaluation_is_started() -> None:
    run = Run(every=5)
    assert [step for step in range(11) if run.queue.due(step)] == [0, 5, 10]
    run.start(5, 1.0)
    assert not run.queue.due(5)
    assert run.queue.last_step == 5


def test_queue_has_no_room_while_the_maximum_of_evaluations_is_pending() -> None:
    run = Run()
    assert not run.queue.awaits_each
    for step in range(MAX_PENDING_EVALS):
        assert run.queue.has_room
        run.start(step, 0.0)
    assert not run.queue.has_room
    assert run.queue.pending == MAX_PENDING_EVALS


def test_queue_with_a_target_has_room_for_only_one_evaluation() -> None:
    run = Run(target=Target("accuracy", 0.9, "max"))
    assert run.queue.awaits_each
    assert run.queue.has_room
    run.start(0, 0.0)
    assert not run.queue.has_room


def test_collect_returns_none_until_the_oldest_evaluation_is_ready() -> None:
    run = Run()
    run.start(0, 0.0)
    run.start(5, 2.5)
    run.started[1].accuracy = 0.4
    assert run.queue.collect(0.0) is None
    assert run.recorded == []
    run.started[0].accuracy = 0.1
    first = run.queue.collect(0.0)
    assert first is not None
    assert first.seconds == 0.5
    assert run.queue.main_value == 0.1
    assert run.queue.collect(0.0) is not None
    assert run.queue.main_value == 0.4
    assert run.recorded == [(0, 0.0), (5, 2.5)]
    assert run.queue.pending == 0


@pytest.mark.parametrize(
    ("target", "time"),
    [
        (Target("accuracy", 0.4, "max"), 2.5),
        (Target("accuracy", 0.5, "max"), None),
        (Target("loss", 0.6, "min"), 2.5),
        (Target("loss", 0.5, "min"), None),
    ],
)
def test_collect_sets_the_time_of_the_model_that_reached_the_target(target: Target, time: float | None) -> None:
    run = Run(target=target)
    for step, t, accuracy in ((0, 0.0, 0.1), (5, 2.5, 0.4)):
        run.start(step, t)
        run.started[-1].accuracy = accuracy
        run.queue.collect(0.0)
    assert run.queue.time_to_target == time


def test_restore_starts_pending_evaluations_again_with_their_models() -> None:
    run, resumed = Run(), Run()
    run.start(0, 0.0)
    run.start(5, 2.5)
    resumed.queue.restore(run.queue.state())
    assert resumed.queue.last_step == 5
    np.testing.assert_array_equal([each.params for each in resumed.started], [[0.0] * 3, [5.0] * 3])
    for evaluation in resumed.started:
        evaluation.accuracy = 0.2
        resumed.queue.collect(0.0)
    assert resumed.recorded == [(0, 0.0), (5, 2.5)]


@pytest.mark.parametrize(("value", "time"), [(0.4, 2.5), (0.5, None)])
def test_restore_with_a_higher_target_forgets_that_the_lower_one_was_reached(value: float, time: float | None) -> None:
    run = Run(target=Target("accuracy", 0.3, "max"))
    run.start(5, 2.5)
    run.started[0].accuracy = 0.4
    run.queue.collect(0.0)
    assert run.queue.time_to_target == 2.5
    extended = Run(target=Target("accuracy", value, "max"))
    extended.queue.restore(run.queue.state())
    assert extended.queue.main_value == 0.4
    assert extended.queue.time_to_target == time


def test_restore_without_a_target_continues_after_the_target() -> None:
    run = Run(target=Target("accuracy", 0.3, "max"))
    run.start(5, 2.5)
    run.started[0].accuracy = 0.4
    run.queue.collect(0.0)
    extended = Run()
    extended.queue.restore(run.queue.state())
    assert extended.queue.time_to_target is None
