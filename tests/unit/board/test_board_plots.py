"""The plots of the board: thinned curves, timelines in bars or shares, staleness, coverage, comparison."""

from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedraa.board import timeline as timelines
from fedraa.board.about import read_about
from fedraa.board.curves import make_curves
from fedraa.board.details import count_fragments, count_staleness, coverage_by_round, make_details, newest_failures
from fedraa.board.rows import compare_flags
from fedraa.board.sampling import json_number, json_numbers, thin_curve, visible_range
from fedraa.board.timeline import busy_shares, make_timeline
from fedraa.board.watched_run import WatchedRun
from fedraa.config.experiment import Experiment
from fedraa.report.command import repeat_command
from fedraa.report.runs import Run
from fedraa.rundir.task_timeline import TaskTimeline


def watched(directory: Path) -> WatchedRun:
    run = WatchedRun(directory, directory.name, lambda: 1)
    run.read_files()
    run.read_log()
    return run


def test_a_thinned_curve_keeps_its_ends_and_every_peak() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=100_000)
    y[[7, 50_001, 99_998]] = 50, -60, 70
    kept = thin_curve(y, 500)
    assert len(kept) <= 502
    assert {0, 7, 50_001, 99_998, 99_999} <= set(kept.tolist())
    assert np.array_equal(kept, np.unique(kept))
    assert thin_curve(np.array([1.0, nan, 2.0])).tolist() == [0, 1, 2]


def test_thinned_curve_keeps_finite_values_among_nan_and_infinity() -> None:
    y = np.full(10_000, nan)
    y[123], y[5000] = 3.0, inf
    assert 123 in thin_curve(y)


def test_visible_range_includes_one_point_beyond_each_end() -> None:
    x = np.arange(10.0)
    assert x[visible_range(x, 3.5, 5.5)].tolist() == [3, 4, 5, 6]
    assert x[visible_range(x, -inf, inf)].tolist() == x.tolist()
    assert len(x[visible_range(x, 20, 30)]) == 1


def test_numbers_for_json_are_rounded_and_none_if_not_finite() -> None:
    assert json_numbers(np.array([1 / 3, nan, inf, 2.0])) == [0.3333333, None, None, 2.0]
    assert json_number(None) is None


def test_curve_equals_the_evaluations_of_the_run(sample_runs: Path) -> None:
    ended = sample_runs / "fed-raa-ended"
    (curve,) = make_curves([watched(ended)], "step", "accuracy", -inf, inf)
    evals = Run(ended).evals
    assert curve["x"] == evals["step"].tolist()
    assert curve["y"] == pytest.approx(evals["accuracy"].tolist(), rel=1e-6)
    best = evals["accuracy"].idxmax()
    assert curve["best"] == {"x": evals["step"][best], "y": pytest.approx(evals["accuracy"][best], rel=1e-6)}
    (loss_curve,) = make_curves([watched(ended)], "bytes", "loss", -inf, inf)
    assert loss_curve["best"]["y"] == pytest.approx(evals["loss"].min(), rel=1e-6)
    assert loss_curve["x"] == evals["bytes"].tolist()
    assert make_curves([watched(ended)], "t", "f1", -inf, inf) == []
    with refuses("x", "t, wall, step, bytes", got="y"):
        make_curves([], "y", "accuracy", -inf, inf)


def timeline_of(tasks: list[tuple[int, int, float, float | None]]) -> TaskTimeline:
    """Return the timeline of tasks (client, fragment, start, end). An end of None is a task in flight."""
    events: list[dict[str, Any]] = []
    for i, (client, fragment, start, end) in enumerate(tasks):
        answer = {"task": i, "client": client, "fragment": fragment}
        events.append({"kind": "dispatch", "t": start, "bytes_down": 10, **answer})
        if end is not None:
            events.append({"kind": "commit", "t": end, "bytes_up": 5, "staleness": i, **answer})
    log = TaskTimeline()
    for event in sorted(events, key=lambda entry: entry["t"]):
        log.add({"wall": 0.0} | event)
    return log


def test_timeline_has_every_task_of_the_visible_range() -> None:
    log = timeline_of([(0, 0, 0.0, 2.0), (1, 1, 0.0, 3.0), (0, 1, 2.0, 5.0), (1, 0, 3.0, None)])
    answer = make_timeline(log, 2, -inf, inf)
    assert answer["tasks"] == 4
    assert answer["bars"] == {
        "client": [0, 1, 0, 1],
        "fragment": [0, 1, 1, 0],
        "start": [0, 0, 2, 3],
        "end": [2, 3, 5, 5],
        "staleness": [0, 1, 2, 0],
        "fate": ["done", "done", "done", "running"],
    }
    assert make_timeline(log, 2, 0.5, 1.5)["bars"]["client"] == [0, 1]
    assert make_timeline(log, 2, 7, 8)["bars"]["client"] == []


def test_timeline_shows_too_many_tasks_as_busy_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MAX_BARS", 3)
    monkeypatch.setattr(timelines, "BINS", 5)
    log = timeline_of([(0, 0, 0.0, 2.0), (1, 1, 0.0, 2.5), (0, 1, 3.0, 5.0), (1, 0, 4.75, None)])
    answer = make_timeline(log, 2, -inf, inf)
    assert "bars" not in answer
    assert answer["edges"] == [0, 1, 2, 3, 4, 5]
    assert answer["busy"] == [[1, 1, 0, 1, 1], [1, 1, 0.5, 0, 0.25]]


def test_busy_shares_equal_a_fine_grid() -> None:
    rng = np.random.default_rng(1)
    cuts = np.sort(rng.uniform(0, 10, 60))
    start, end = cuts[::2], cuts[1::2]
    edges = np.linspace(2, 9, 8)
    moments = np.linspace(2, 9, 700_001)
    busy = np.any([(moments >= a) & (moments < b) for a, b in zip(start, end, strict=True)], axis=0)[:-1]
    assert busy_shares(start, end, edges) == pytest.approx(busy.reshape(7, -1).mean(axis=1), abs=1e-4)


def test_idle_share_counts_all_clients() -> None:
    log = timeline_of([(0, 0, 0.0, 2.0), (1, 0, 0.0, 1.0), (0, 0, 3.0, 4.0)])
    assert log.idle_fraction(2) == pytest.approx(1 - 4 / 8)
    assert TaskTimeline().idle_fraction(2) is None
    assert timeline_of([(0, 0, 0.0, None), (1, 0, 2.0, 4.0)]).idle_fraction(2) == pytest.approx(1 - 6 / 8)


def test_staleness_is_counted_in_bars() -> None:
    log = timeline_of([(0, 0, float(i), i + 0.5) for i in range(100)])
    answer = count_staleness(log)
    assert answer == {"width": 3, "counts": [3] * 33 + [1], "mean": 49.5, "max": 99}
    assert count_staleness(TaskTimeline()) is None


def test_fragments_are_counted_by_client() -> None:
    log = timeline_of([(0, 0, 0.0, 1.0), (1, 2, 0.0, 1.0), (1, 2, 1.0, 2.0), (0, 2, 1.0, None)])
    answer = count_fragments(log, 2)
    assert answer is not None
    assert (answer["names"], answer["counts"], answer["by_client"]) == (["0", "2"], [1, 2], [[1, 0], [0, 2]])
    assert count_fragments(timeline_of([(0, 0, 0.0, 1.0)]), 1) is None


def test_many_fragments_are_grouped() -> None:
    log = timeline_of([(0, i, float(i), i + 0.5) for i in range(100)])
    answer = count_fragments(log, 1)
    assert answer is not None
    assert answer["names"][:2] == ["0–1", "2–3"]
    assert answer["counts"] == [2] * 50


def test_coverage_has_the_minimum_the_maximum_and_the_mean() -> None:
    log = TaskTimeline()
    for i in range(600):
        answer = {"coverage_min": i % 2, "coverage_max": 5 + i % 2, "uncovered": 10 * (i % 2)}
        log.add({"kind": "round", "t": float(i), "wall": 0.0, "round": i} | answer)
    answer = coverage_by_round(log, parameters=100)
    assert answer is not None
    assert (answer["round"][:2], answer["least"][0], answer["most"][0], answer["uncovered"][0]) == (
        [0, 2],
        0,
        6,
        0.05,
    )
    assert coverage_by_round(TaskTimeline(), 100) is None


def test_failures_are_listed_newest_first() -> None:
    log = timeline_of([(3, 0, 0.0, None)])
    log.add({"kind": "fault", "t": 1.0, "wall": 2.0, "task": 0, "worker": 1, "error": "died", "action": "retry"})
    log.add({"kind": "drop", "t": 2.0, "wall": 3.0, "task": 0, "client": 3, "error": "nan", "action": "stop"})
    assert log.in_flight == 0
    assert [failure["error"] for failure in newest_failures(log)] == ["nan", "died"]
    assert make_timeline(log, 4, -inf, inf)["bars"]["fate"] == ["dropped"]


def test_details_have_staleness_without_rounds_and_coverage_with_rounds(sample_runs: Path) -> None:
    answer = make_details(watched(sample_runs / "fed-raa-ended"), -inf, inf)
    assert answer["staleness"]
    assert answer["fragments"]
    assert answer["coverage"] is None
    answer = make_details(watched(sample_runs / "scaffold-stopped"), -inf, inf)
    assert answer["coverage"]["least"]
    assert answer["staleness"] is answer["fragments"] is None


def test_runs_are_compared_by_the_flags_in_which_they_differ(sample_runs: Path) -> None:
    names = ["fed-raa-ended", "fed-raa-stopped", "scaffold-stopped"]
    answer = compare_flags([watched(sample_runs / name) for name in names])
    assert "seed" not in answer["flags"]
    assert "updates" in answer["flags"]
    assert set(answer["values"]) == set(names)
    flags = Experiment(**read_about(sample_runs / "fed-raa-ended").flags)
    assert answer["commands"]["fed-raa-ended"].startswith("fedraa run ")
    assert f"--updates {flags.updates}" in answer["commands"]["fed-raa-ended"]


def test_repeat_command_imports_no_code_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "evil_ext.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "evil_ext:Bad" in repeat_command({"scheduler": "evil_ext:Bad"})
    assert repeat_command({"method": 3, "clients": "many"}).startswith("# ")
