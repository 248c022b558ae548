"""Workers that die, hang and fail at chosen tasks: the run equals the undisturbed one, and its log has the faults."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from execution import execute, execute_warm
from mishaps import die, err, first, freeze, hang
from refusals import refuses
from same_run import same

from actors.pool.executor import RayExecutor
from actors.pool.handles import WorkerHandle
from actors.pool.liveness import Heartbeat
from actors.worker.worker import Worker
from fedraa.api import run
from fedraa.client.trainer import Work
from fedraa.config.experiment import Experiment
from fedraa.engine import task_queues
from fedraa.engine.build import build_run
from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import RunFailed, WorkersLost
from fedraa.evaluation.personal import EvaluationData
from fedraa.messages import Evaluation, State, Update, Vector
from fedraa.rundir.history import History

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

EVALUATION = -1
ANY = None


Plan = Mapping[tuple[int | None, int], Callable[[], None]]


def faulty(plan: Plan, marks: Path | None = None) -> type[Worker]:
    """Return a class of workers that fail by a plan for (worker, task): once if `marks` is set, or every time."""

    class Faulty(Worker):
        def train(self, work: list[Work]) -> list[Update]:
            self._happen(work[0].task.id)
            return super().train(work)

        def evaluate(self, params: Vector, kept: State, data: EvaluationData) -> Evaluation:
            self._happen(EVALUATION)
            return super().evaluate(params, kept, data)

        def _happen(self, task: int) -> None:
            for handle in (self.number, ANY):
                if (handle, task) in plan and (marks is None or first(marks / f"{handle} {task}")):
                    plan[handle, task]()

    return Faulty


def experiment(**changes: object) -> Experiment:
    settings = {"hidden": (8,), "clients": 4, "local_steps": 2, "updates": 24, "checkpoint_every": 6}
    return Experiment(**{**settings, **changes})


def trial(**changes: object) -> RunSpec:
    return build_run(experiment(**changes))


@pytest.fixture(autouse=True)
def one_task_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send one task per call. Calls of several tasks have separate tests."""
    monkeypatch.setattr(task_queues, "GROUP_SECONDS", 0.0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> History:
    return run(experiment(engine="local", out=tmp_path_factory.mktemp("undisturbed")))


def faults(history: History) -> list[dict[str, object]]:
    return [line for line in history.lines() if line["kind"] == "fault"]


def test_errors_of_tasks_do_not_change_the_run(
    undisturbed: History, warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    erring = faulty({(ANY, task): err for task in (0, 9, 17)}, tmp_path)
    history = execute_warm(warm_workers, trial(), tmp_path / "run", erring)
    same(history.directory, undisturbed)
    assert [line["task"] for line in faults(history)] == [0, 9, 17]
    error = "ArithmeticError: seven is not eight"
    assert {(line["error"], line["action"]) for line in faults(history)} == {(error, "retry")}
    assert {line["worker"] for line in faults(history)} <= {0, 1}


def test_workers_that_die_freeze_and_hang_are_replaced(undisturbed: History, tmp_path: Path) -> None:
    """A task has no time limit before others have ended. Here the test sets a limit for the task that hangs."""
    hangs = threading.Event()

    class LimitForHangingTask(HangDetector):
        def bound(self, kind: str, work: float) -> float:
            return 5.0 if (tmp_path / f"{ANY} 9").exists() and not hangs.is_set() else 3600.0

    class RecordsHang(RayExecutor):
        def _replace_worker(self, handle: WorkerHandle, cause: str) -> None:
            if cause.startswith("worker hung"):
                hangs.set()
            super()._replace_worker(handle, cause)

    plan = {(ANY, 0): freeze, (ANY, 5): die, (ANY, 9): hang, (ANY, EVALUATION): die}
    history = execute(
        trial(),
        tmp_path / "run",
        faulty(plan, tmp_path),
        RecordsHang,
        workers=1,
        hang_detector=LimitForHangingTask(),
        heartbeat=Heartbeat(every=0.2, bound=2.0),
    )
    same(history.directory, undisturbed)
    errors = {line["task"]: str(line["error"]) for line in faults(history)}
    assert errors.keys() == {0, 5, 9, None}
    assert errors[0].startswith("worker froze: no sign of life for ")
    assert errors[5] == errors[None] == "worker died"
    assert errors[9] == "worker hung: no answer within 5 s"
    assert len(faults(history)) == 4


@pytest.mark.slow
def test_a_worker_that_freezes_after_other_tasks_is_replaced(undisturbed: History, tmp_path: Path) -> None:
    """A slow machine is not mistaken for a hung worker."""
    history = execute(
        trial(),
        tmp_path / "run",
        faulty({(ANY, 9): freeze}, tmp_path),
        workers=1,
        heartbeat=Heartbeat(every=0.2, bound=2.0),
    )
    same(history.directory, undisturbed)
    (line,) = faults(history)
    assert (line["task"], line["action"]) == (9, "retry")
    assert str(line["error"]).startswith("worker froze: no sign of life for ")


@pytest.mark.slow
def test_run_continues_without_a_worker_that_died_three_times(undisturbed: History, tmp_path: Path) -> None:
    def record_death_and_die() -> None:
        (tmp_path / f"death of {os.getpid()}").touch()
        die()

    def wait_for_deaths() -> None:  # so that the other worker starts again and gets tasks
        while len(list(tmp_path.glob("death*"))) < 3:
            time.sleep(0.01)

    everything = {(0, task): record_death_and_die for task in range(EVALUATION, 100)}
    everything |= {(1, task): wait_for_deaths for task in range(EVALUATION, 100)}
    history = execute(trial(), tmp_path / "run", faulty(everything))
    same(history.directory, undisturbed)
    said = [str(line["error"]) for line in faults(history)]
    assert len(said) == 3
    assert said[-1] == "worker died; given up after 3 deaths in a row"
    assert {line["worker"] for line in faults(history)} == {0}


def test_run_without_workers_fails_and_can_be_resumed(
    undisturbed: History, warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    from_task_15 = {(ANY, task): die for task in range(15, 100)}
    with pytest.raises(RunFailed, match="worker died") as failed:
        execute(trial(), tmp_path / "run", faulty(from_task_15), workers=1)
    assert failed.value.field.startswith(("workers", "client "))
    assert faults(History(tmp_path / "run"))
    history = execute_warm(warm_workers, trial(), tmp_path / "run", resume=True)
    same(history.directory, undisturbed)


def test_task_that_always_fails_is_dropped_after_two_attempts(warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    history = execute_warm(warm_workers, trial(), tmp_path, faulty({(ANY, 7): err}))
    assert [(line["task"], line["action"]) for line in faults(history)] == [(7, "retry")]
    (drop,) = (line for line in history.lines() if line["kind"] == "drop")
    assert (drop["task"], drop["error"], drop["action"]) == (7, "ArithmeticError: seven is not eight", "retry")
    assert history.summary["tasks"] == 24
    assert (history.summary["dropped"], history.summary["quarantined"]) == (1, [])


def test_run_error_contains_the_reason_why_a_worker_cannot_start(tmp_path: Path) -> None:
    class Unable(Worker):
        def __init__(self, *arguments: Any) -> None:
            raise ValueError("device: there is none")

    with refuses("workers", "device: there is none", error=WorkersLost):
        execute(trial(), tmp_path, Unable, workers=1)


def test_on_the_wall_clock_no_update_is_lost_or_applied_twice(tmp_path: Path) -> None:
    """The run takes longer than Ray needs to notice the death of a worker."""
    plan = {(ANY, task): happens for task, happens in ((3, die), (8, err))}
    spec = trial(clock="wall", time_scale=0.05, updates=None, time=4.0, checkpoint_every=None)
    history = execute(spec, tmp_path / "run", faulty(plan, tmp_path))
    answered = [line["task"] for line in history.lines() if line["kind"] == "commit"]
    assert len(answered) == len(set(answered))
    assert {3, 8} <= set(answered)
    assert sorted(line["task"] for line in faults(history)) == [3, 8]


def test_update_with_nan_is_refused_and_its_task_is_sent_again(
    undisturbed: History, warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    class NanWorker(Worker):
        def train(self, work: list[Work]) -> list[Update]:
            [update] = super().train(work)
            if update.task in (4, 11) and first(tmp_path / str(update.task)):
                update.params[update.task] = np.nan
            return [update]

    history = execute_warm(warm_workers, trial(), tmp_path / "run", NanWorker)
    same(history.directory, undisturbed)
    assert [(line["task"], line["error"]) for line in faults(history)] == [
        (task, "update refused: params hold 1 value that is not finite") for task in (4, 11)
    ]
