"""Callbacks write the same evaluations during a run and for a run that has ended."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from refusals import refuses

from benchmarks.system.killing import KillAt, Killed
from fedraa.api import resume, run
from fedraa.callbacks import CSV, Callback, TensorBoard, WandB
from fedraa.config.experiment import Experiment
from fedraa.report import to_tensorboard, to_wandb
from fedraa.rundir.history import History

METRICS = ("accuracy", "loss", "client_mean", "client_std", "client_worst")
Written = dict[str, list[Any]]


def experiment(out: Path, updates: int = 12) -> Experiment:
    return Experiment(
        engine="local",
        hidden=(8,),
        clients=4,
        local_steps=2,
        updates=updates,
        eval_every=4,
        checkpoint_every=3,
        out=out,
    )


@pytest.fixture
def tensorboard(monkeypatch: pytest.MonkeyPatch) -> Written:
    """Return the written values by folder."""
    written: Written = {}

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int | None = None) -> None:
            self._folder = written[folder] = [] if purge_step == 0 else written.get(folder, [])

        def add_scalar(self, name: str, value: float, step: int, walltime: float | None = None) -> None:
            self._folder.append((name, value, step, walltime))

        def flush(self) -> None: ...

        def close(self) -> None:
            self._folder.append("closed")

    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    return written


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the runs by id, with their arguments."""
    runs: dict[str, Any] = {}

    class Run:
        def __init__(self, id: str, resume: str | None, **given: Any) -> None:
            before = runs.get(id) if resume == "allow" else None
            self.rows: dict[int, dict[str, float]] = {} if before is None else before.rows
            self.given, self.summary, self.finished = given, {}, False
            runs[id] = self

        @property
        def step(self) -> int:
            return max(self.rows, default=0)

        def log(self, row: dict[str, float], step: int) -> None:
            assert step >= self.step
            self.rows[step] = row

        def finish(self) -> None:
            self.finished = True

    fake = ModuleType("wandb")
    fake.init = Run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return runs


def expected(history: History) -> list[tuple[int, dict[str, float]]]:
    """Return the expected values by step, from evals.csv."""
    rows = history.evals.to_dict("records")
    return [(int(row["step"]), {name: row[name] for name in (*METRICS, "t")}) for row in rows]


def test_csv_of_a_whole_and_of_a_resumed_run_equals_the_evaluations(tmp_path: Path) -> None:
    history = run(experiment(tmp_path / "run"), callbacks=[CSV(tmp_path / "new" / "rows.csv")])
    text = (tmp_path / "new" / "rows.csv").read_text()
    evals = [line.split(",") for line in (history.directory / "evals.csv").read_text().splitlines()]
    # The column wall is not written.
    assert text == "".join(",".join((*row[:2], *row[3:])) + "\n" for row in evals)
    with pytest.raises(Killed):
        run(experiment(tmp_path / "killed"), callbacks=[CSV(tmp_path / "killed.csv"), KillAt(8)])
    resume(tmp_path / "killed", callbacks=[CSV(tmp_path / "killed.csv")])
    assert (tmp_path / "killed.csv").read_text() == text


def test_tensorboard_gets_every_metric_of_every_evaluation(tensorboard: Written, tmp_path: Path) -> None:
    history = run(experiment(tmp_path / "run"), callbacks=[TensorBoard(tmp_path / "logs")])
    scalars = [(name, row[name], step, None) for step, row in expected(history) for name in row]
    assert tensorboard == {str(tmp_path / "logs" / "run"): [*scalars, "closed"]}


def test_tensorboard_of_a_resumed_run_is_written_from_the_start(tensorboard: Written, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(experiment(tmp_path / "run"), callbacks=[TensorBoard(tmp_path / "logs"), KillAt(8)])
    history = resume(tmp_path / "run", callbacks=[TensorBoard(tmp_path / "logs")])
    assert len(tensorboard[str(tmp_path / "logs" / "run")]) == 6 * len(expected(history)) + 1


def test_tensorboard_of_an_ended_run_has_its_bytes_and_times(tensorboard: Written, tmp_path: Path) -> None:
    history = run(experiment(tmp_path / "run"))
    to_tensorboard([tmp_path / "run"], tmp_path / "logs")
    (written,) = tensorboard.values()
    names = (*METRICS, "bytes", "t")
    assert [(name, step) for name, _, step, _ in written[:-1]] == [(n, s) for s, _ in expected(history) for n in names]
    assert [wall for name, _, _, wall in written[:-1] if name == "t"] == history.evals["wall"].tolist()
    assert [value for name, value, _, _ in written[:-1] if name == "loss"] == history.evals["loss"].tolist()


def test_resumed_run_continues_its_wandb_run(wandb: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(experiment(tmp_path / "run"), callbacks=[WandB("project"), KillAt(8)])
    (killed,) = wandb.values()
    assert killed.finished
    history = resume(tmp_path / "run", callbacks=[WandB("project")])
    (resumed,) = wandb.values()
    assert sorted(resumed.rows.items()) == expected(history)
    assert (resumed.given["project"], resumed.given["name"]) == ("project", "run")
    assert resumed.given["config"] == history.config["experiment"]
    assert (resumed.summary["reason"], resumed.summary["step"]) == ("steps", 12)


def test_wandb_run_of_an_ended_run_has_its_evaluations_and_summary(wandb: dict[str, Any], tmp_path: Path) -> None:
    history = run(experiment(tmp_path / "run"))
    to_wandb([tmp_path / "run"], "project")
    (written,) = wandb.values()
    assert [*written.rows] == [step for step, _ in expected(history)]
    sent = [line for line in history.lines() if line["kind"] == "commit"]
    # The bytes that clients received are also written.
    assert written.rows[12]["bytes"] > sum(int(str(line["bytes_up"])) for line in sent)
    assert written.summary == history.summary
    assert written.finished


@pytest.mark.parametrize(("make", "package"), [(TensorBoard, "tensorboard"), (WandB, "wandb")])
def test_callback_without_its_package_is_refused_before_the_run(
    make: type[Callback], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if package == "tensorboard" else package, None)
    with refuses("callbacks", f"pip install {package}"):
        run(experiment(tmp_path / "run"), callbacks=[f"{package}('somewhere')"])
    assert not (tmp_path / "run").exists()
