"""Studies that are interrupted while several processes execute runs."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.studies import study
from benchmarks.studies.metrics import ACCURACY
from benchmarks.studies.study import Cell, Finished, Study, execute_study
from fedraa.config.experiment import Experiment
from fedraa.errors import Interrupted, RunFailed

JOBS = 2
CELLS = [Cell(str(rounds), Experiment(method="fedavg", rounds=rounds)) for rounds in range(1, 8)]
SMALL = Study("small", "Small", CELLS, (ACCURACY,), "1", seeds=(0,))


class Processes:
    """Simulated processes. When all are busy, the oldest call ends with `error`, or without a failure."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.most = 0
        self._error = error
        self._running: list[Future[None]] = []

    @contextmanager
    def open(self, jobs: int, prepare: object) -> Iterator[Callable[..., Future[None]]]:
        yield self._submit

    def _submit(self, function: object, planned: Experiment) -> Future[None]:
        self._running = [future for future in self._running if not future.done()]
        self._running.append(Future())
        self.most = max(self.most, len(self._running))
        last = planned.rounds == len(CELLS)
        for future in self._running if last else self._running[: len(self._running) - JOBS + 1]:
            if self._error is None:
                future.set_result(None)
            else:
                future.set_exception(self._error)
        return self._running[-1]


def ignore(run: Finished, left: int) -> None:
    pass


def test_study_never_has_more_runs_in_progress_than_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    processes = Processes()
    monkeypatch.setattr(study, "open_processes", processes.open)
    runs = execute_study(SMALL, tmp_path, JOBS, ignore)
    assert [run.cell.row for run in runs] == SMALL.rows
    assert processes.most == JOBS


def test_killed_process_of_a_run_ends_the_study_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(study, "open_processes", Processes(BrokenProcessPool()).open)
    with pytest.raises(RunFailed, match="fewer --jobs") as caught:
        execute_study(SMALL, tmp_path, JOBS, ignore)
    assert caught.value.field == "jobs"


@pytest.mark.parametrize("jobs", [1, JOBS])
def test_ctrl_c_ends_a_study_with_the_next_step(jobs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(experiment: Experiment) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "_run_one", interrupt)
    monkeypatch.setattr(study, "open_processes", Processes(KeyboardInterrupt()).open)
    with pytest.raises(Interrupted, match="same command"):
        execute_study(SMALL, tmp_path, jobs, ignore)
