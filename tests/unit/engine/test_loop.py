"""A run moves from running to draining to finished. It is saved before it drains, or if it is stopped."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from fedraa.callbacks import Limits
from fedraa.config.experiment import Experiment
from fedraa.devices.availability import Timing
from fedraa.engine.build import build_run
from fedraa.engine.executor import LocalExecutor
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.engine.loop import Loop
from fedraa.engine.loop_options import LoopOptions
from fedraa.engine.loop_state import LoopState, StopReason
from fedraa.engine.run_spec import RunSpec
from fedraa.rundir.event_log import EventLog


@pytest.fixture(scope="module")
def spec() -> RunSpec:
    return build_run(Experiment(clients=3, hidden=(8,), local_steps=1, engine="local"))


class Run:
    """A loop with its request to stop, and the state and step of each checkpoint."""

    def __init__(self, spec: RunSpec, directory: Path, limits: Limits) -> None:
        self.stop = Event()
        self.saved: list[tuple[LoopState, int]] = []
        self.log = EventLog(directory)
        self.log.begin(spec.metric_spec)
        worker = make_worker_spec(spec)
        self.loop = Loop(
            make_server(spec, self.log.record),
            LocalExecutor(worker.trainer("cpu"), worker.evaluator(spec.evaluation_data, "cpu"), spec.data),
            self.log,
            LoopOptions(
                limits=limits,
                eval_every=100,
                checkpoint_every=100,
                timing=Timing(0, 0.1),
                wall=False,
                max_update_norm=None,
            ),
            save=self._save,
            stop=self.stop,
        )
        self.loop.begin()

    def _save(self) -> float:
        self.saved.append((self.loop.phase, self.loop.server.step))
        return 0.0


@pytest.fixture
def run(spec: RunSpec, tmp_path: Path) -> Iterator[Run]:
    run = Run(spec, tmp_path, Limits(steps=4, time=None, accuracy=None))
    yield run
    run.log.close()


def test_run_to_its_limit_is_saved_before_it_drains(run: Run) -> None:
    assert run.loop.run() == "steps"
    assert run.loop.phase is LoopState.FINISHED
    assert run.loop.stop_reason == "steps"
    assert run.loop.evaluations.last_step == 4
    # The first checkpoint is written at the start.
    assert run.saved == [(LoopState.RUNNING, 0), (LoopState.RUNNING, 4)]


def test_run_stopped_while_running_is_saved(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = run.loop.server.commit

    def commit_and_stop(*arguments: object) -> object:
        run.stop.set()
        return commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(run.loop.server, "commit", commit_and_stop)
    assert run.loop.run() is None
    assert run.loop.phase is LoopState.RUNNING
    assert run.saved == [(LoopState.RUNNING, 0), (LoopState.RUNNING, 1)]


def test_run_stopped_while_draining_keeps_the_checkpoint_before_draining(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = run.loop.evaluations.start

    def start_and_stop(server: object, now: float) -> None:
        start(server, now)  # type: ignore[arg-type]
        if run.loop.server.step == 4:
            run.stop.set()

    monkeypatch.setattr(run.loop.evaluations, "start", start_and_stop)
    assert run.loop.run() is None
    assert run.loop.phase is LoopState.DRAINING
    assert run.loop.stop_reason is None
    assert run.saved == [(LoopState.RUNNING, 0), (LoopState.RUNNING, 4)]


@pytest.mark.parametrize(
    ("limits", "stop_source", "time_to_target", "reason"),
    [
        (Limits(steps=0, time=None, accuracy=0.5), "EarlyStopping", 1.0, "callback"),
        (Limits(steps=0, time=None, accuracy=0.5), None, 1.0, "accuracy"),
        (Limits(steps=0, time=-1.0, accuracy=0.5), None, None, "steps"),
        (Limits(steps=1, time=-1.0, accuracy=0.5), None, None, None),
    ],
)
def test_stop_reason_is_the_first_that_applies(
    limits: Limits,
    stop_source: str | None,
    time_to_target: float | None,
    reason: StopReason | None,
    spec: RunSpec,
    tmp_path: Path,
) -> None:
    run = Run(spec, tmp_path, limits)
    run.loop.stop_source = stop_source
    run.loop.evaluations.time_to_target = time_to_target
    # The limit of time does not apply yet, because clients wait for work and an evaluation is due.
    assert run.loop._reason_to_stop() == reason
    run.log.close()
