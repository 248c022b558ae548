"""Metrics that studies compute from a run's directory."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import fedraa
from benchmarks.studies.metrics import LATE_STD, after_rounds, at_own_time, read_evaluations, to_target
from fedraa.config.experiment import Experiment
from fedraa.rundir.file_names import EVENTS


def write_run(directory: Path, lines: list[dict[str, Any]], eval_every: int = 1) -> Any:
    """Write a log with these lines, and return a stand-in for the run's history."""
    events = [{"seq": n, "t": 0.0, "wall": 0.0, **line} for n, line in enumerate(lines)]
    (directory / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in events))
    experiment = Experiment(dataset="digits")
    config = {"resolved": {"eval_every": eval_every}}
    return SimpleNamespace(directory=directory, experiment=experiment, config=config)


def evaluation(step: int, t: float, accuracy: float) -> dict[str, Any]:
    return {"kind": "eval", "step": step, "t": t, "accuracy": accuracy}


def dispatch(task: int, step: int, t: float, megabytes: float) -> dict[str, Any]:
    return {"kind": "dispatch", "task": task, "step": step, "t": t, "bytes_down": int(1e6 * megabytes)}


def commit(task: int, t: float, megabytes: float, gflops: float, staleness: int = 0) -> dict[str, Any]:
    line = {"kind": "commit", "task": task, "t": t, "staleness": staleness, "staleness_total": staleness}
    return line | {"bytes_up": int(1e6 * megabytes), "flops": 1e9 * gflops}


def test_cost_is_counted_until_the_evaluation_that_reaches_the_target(tmp_path: Path) -> None:
    lines = [
        evaluation(0, 0.0, 0.1),
        dispatch(0, 0, 0.0, 1),
        dispatch(1, 0, 0.0, 2),
        commit(0, 1.5, 0.5, 3),
        evaluation(1, 1.5, 0.6),
        commit(1, 2.5, 0.5, 4, staleness=1),
        evaluation(2, 2.5, 0.5),
    ]
    history = write_run(tmp_path, lines)
    assert read_evaluations(history)["bytes"].tolist() == [0, 3.5e6, 4e6]
    assert to_target(0.55, "bytes").of(history) == 3.5
    assert to_target(0.55, "flops").of(history) == 3
    assert to_target(0.55, "t").of(history) == 1.5
    assert to_target(0.7, "step").of(history) == float("inf")


def test_cost_of_a_late_evaluation_has_no_tasks_of_later_steps(tmp_path: Path) -> None:
    """Steps 0 and 2 are evaluated late. Step 3 is evaluated at the end, with all tasks sent until then.

    Before step 2: downloads of 1, 2 and 4 MB, uploads of 0.5 and 0.25 MB, and 3 + 5 GFLOP.
    """
    lines = [
        dispatch(0, 0, 0.0, 1),
        dispatch(1, 0, 0.0, 2),
        commit(0, 1.0, 0.5, 3),
        dispatch(2, 1, 1.0, 4),
        commit(1, 2.0, 0.25, 5, staleness=1),
        dispatch(3, 2, 2.0, 8),
        # A dropped task was sent, but uploaded nothing.
        {"kind": "drop", "task": 3, "t": 2.5, "client": 0, "error": "nan", "action": "retry"},
        commit(2, 3.0, 0.125, 7, staleness=1),
        evaluation(0, 0.0, 0.1),
        dispatch(4, 3, 3.0, 16),
        evaluation(2, 2.0, 0.6),
        evaluation(3, 4.0, 0.7),
    ]
    table = read_evaluations(write_run(tmp_path, lines, eval_every=2))
    assert table["bytes"].tolist() == [0, 7.75e6, 31.875e6]
    assert table["flops"].tolist() == [0, 8e9, 15e9]


def check_costs_by_time(directory: Path, **fields: Any) -> pd.DataFrame:
    """Compare the costs of a run with sums over all log lines with an earlier time. Return the evaluations.

    Tasks have different durations, so an update of a later step has a later time.
    """
    small = {"dataset": "digits", "clients": 6, "local_steps": 2, "hidden": (8,), "engine": "local", "quiet": True}
    experiment = Experiment(**{**small, "compute": "lognormal:1", "eval_every": 2, "out": directory, **fields})
    history = fedraa.run(experiment)
    table = read_evaluations(history)
    lines = list(history.lines())
    for row in table.itertuples():
        down = sum(line["bytes_down"] for line in lines if line["kind"] == "dispatch" and line["t"] < row.t)
        done = [line for line in lines if line["kind"] == "commit" and line["t"] <= row.t]
        assert row.bytes == down + sum(line["bytes_up"] for line in done)
        assert row.flops == pytest.approx(sum(line["flops"] for line in done))
    return table


@pytest.mark.parametrize("limit", [{"updates": 21}, {"updates": 20, "target_accuracy": 0.99}])
def test_costs_of_an_asynchronous_run_are_those_at_the_time_of_the_evaluation(
    limit: dict[str, Any], tmp_path: Path
) -> None:
    table = check_costs_by_time(tmp_path / "run", method="fed-raa", **limit)
    assert table["step"].tolist()[:3] == [0, 2, 4]
    assert table["bytes"][0] == 0


def test_costs_of_a_run_in_rounds_are_those_at_the_time_of_the_evaluation(tmp_path: Path) -> None:
    assert check_costs_by_time(tmp_path / "run", method="fedavg", rounds=7)["step"].tolist() == [0, 2, 4, 6, 7]


def test_accuracy_is_read_after_rounds_and_at_a_multiple_of_the_target_time(tmp_path: Path) -> None:
    """The target .5 is reached at time 2, so three times its own time is 6."""
    evals = [(0, 0.0, 0.1), (5, 2.0, 0.5), (10, 5.0, 0.6), (15, 7.0, 0.7)]
    history = write_run(tmp_path, [evaluation(*row) for row in evals], eval_every=5)
    assert after_rounds(10).of(history) == pytest.approx(60)
    assert after_rounds(14).of(history) == pytest.approx(60)
    assert at_own_time({"digits": 0.5}, 3).of(history) == pytest.approx(60)
    assert at_own_time({"digits": 0.5}, 3.5).of(history) == pytest.approx(70)
    # It ended too early, or never reached the target.
    assert math.isnan(at_own_time({"digits": 0.5}, 4).of(history))
    assert math.isnan(at_own_time({"digits": 0.9}, 3).of(history))


def test_late_deviation_is_a_mean_over_the_last_quarter_of_the_evaluations() -> None:
    """A quarter of five evaluations is rounded up to two, and of one evaluation to one."""
    history: Any = SimpleNamespace(evals=pd.DataFrame({"client_std": [0.9, 0.5, 0.4, 0.1, 0.3]}))
    assert LATE_STD.of(history) == pytest.approx(20)
    alone: Any = SimpleNamespace(evals=pd.DataFrame({"client_std": [0.3]}))
    assert LATE_STD.of(alone) == pytest.approx(30)
