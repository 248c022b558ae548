"""Watched runs: their numbers agree with reports, and they may appear, grow, be damaged, be repaired and disappear."""

import fcntl
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedraa.api import run
from fedraa.board import lines
from fedraa.board.answers import ANSWERS
from fedraa.board.board import Board
from fedraa.board.curves import bytes_by
from fedraa.board.rows import make_row
from fedraa.board.watched_run import WatchedRun
from fedraa.config.experiment import Experiment
from fedraa.report.runs import Run


def rows_after_reading(board: Board) -> dict[str, dict[str, object]]:
    """Return the rows of all runs after the board has read all files."""
    board._next_search = 0.0
    board.read_files()
    while board.read_logs():
        pass
    board.read_files()
    return {name: make_row(run) for name, run in board.runs.items()}


@pytest.fixture
def folder(sample_runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(sample_runs / "fed-raa-ended", tmp_path / "runs" / "first")
    return tmp_path / "runs"


def test_row_of_a_run_agrees_with_its_report(sample_runs: Path) -> None:
    by_name = rows_after_reading(Board(sample_runs))
    report = Run(sample_runs / "fed-raa-ended")
    shown, total = by_name["fed-raa-ended"], report.summary
    assert shown["state"] == "ended"
    assert (shown["step"], shown["tasks"], shown["faults"]) == (total["steps"], total["tasks"], total["faults"])
    assert shown["bytes"] == total["bytes_down"] + total["bytes_up"]
    assert shown["flops"] == total["flops"]
    assert shown["energy"] == total.get("energy")
    assert shown["staleness"] == pytest.approx(total["staleness_mean"], rel=1e-6)
    assert shown["idle"] == pytest.approx(report.idle_fraction, abs=1e-6)
    # A row is typed as a mapping of objects.
    assert shown["last"]["accuracy"] == pytest.approx(total["accuracy"], rel=1e-6)  # type: ignore[index]
    assert shown["best"] == pytest.approx(total["best_accuracy"], rel=1e-6)
    assert {name: other_row["state"] for name, other_row in by_name.items()} == {
        "fed-raa-ended": "ended",
        "fed-raa-stopped": "interrupted",
        "scaffold-stopped": "interrupted",
    }
    assert by_name["scaffold-stopped"]["rounds"]


def test_row_of_a_run_whose_devices_have_watts_has_its_energy(tmp_path: Path) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text("count,compute,watts_train\n2,1e9,4\n")
    out = tmp_path / "runs" / "one"
    flags = {"clients": 2, "hidden": (8,), "local_steps": 1, "updates": 4, "engine": "local"}
    history = run(Experiment(compute=str(devices), units="physical", out=out, **flags))
    shown = rows_after_reading(Board(out.parent))["one"]
    assert shown["energy"] == history.summary["energy"] > 0


def test_bytes_of_a_curve_agree_with_the_report(sample_runs: Path) -> None:
    board = Board(sample_runs)
    rows_after_reading(board)
    evals = Run(sample_runs / "fed-raa-ended").evals
    totals = bytes_by(board.runs["fed-raa-ended"].timeline, evals["t"].to_numpy(float))
    assert np.array_equal(totals, evals["bytes"])


def test_log_that_grows_byte_by_byte_gives_the_same_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = rows_after_reading(Board(folder))["first"]
    log, table = (folder / "first" / name for name in ("events.jsonl", "evals.csv"))
    events, evals = log.read_bytes(), table.read_bytes()
    monkeypatch.setattr(lines, "CHUNK_BYTES", 100)
    log.write_bytes(b"")
    table.write_bytes(b"")
    board = Board(folder)
    for share in np.linspace(0, 1, 40):
        with log.open("ab") as stream:
            stream.write(events[log.stat().st_size : int(share * len(events))])
        with table.open("ab") as stream:
            stream.write(evals[table.stat().st_size : int(share * len(evals))])
        row = rows_after_reading(board)["first"]
    assert row | {"version": 0} == wanted | {"version": 0}
    assert board.log_bytes == (len(events), len(events))


def test_resumed_run_is_counted_again(folder: Path) -> None:
    board = Board(folder)
    before = rows_after_reading(board)["first"]
    log = folder / "first" / "events.jsonl"
    kept = log.read_text().splitlines(keepends=True)
    log.write_text("".join(kept[:20]))
    (folder / "first" / "summary.json").unlink()
    row = rows_after_reading(board)["first"]
    assert row["state"] == "interrupted"
    assert board.runs["first"].stats.events == 20
    log.write_text("".join(kept).replace('"wall":0.1', '"wall":0.2'))
    assert rows_after_reading(board)["first"]["tasks"] == before["tasks"]


def test_board_shows_new_runs_and_drops_removed_runs(folder: Path, sample_runs: Path) -> None:
    board = Board(folder)
    assert list(rows_after_reading(board)) == ["first"]
    version = board.version
    shutil.copytree(sample_runs / "fed-raa-ended", folder / "deep" / "er" / "second")
    assert list(rows_after_reading(board)) == ["deep/er/second", "first"]
    assert board.version > version
    shutil.rmtree(folder / "first")
    assert list(rows_after_reading(board)) == ["deep/er/second"]


def test_removed_run_is_shown_as_damaged(folder: Path) -> None:
    board = Board(folder)
    rows_after_reading(board)
    shutil.rmtree(folder / "first")
    run = board.runs["first"]
    run.read_log()
    run.read_files()
    assert run.state == "damaged"
    assert run.detail == f"run: {folder / 'first'} is not a run directory; it has no config.json"


def test_a_folder_that_is_a_run_is_shown(folder: Path) -> None:
    assert list(rows_after_reading(Board(folder / "first"))) == ["first"]


def test_run_with_a_writer_is_running(folder: Path) -> None:
    (folder / "first" / "summary.json").unlink()
    board = Board(folder)
    with (folder / "first" / "events.jsonl").open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert rows_after_reading(board)["first"]["state"] == "running"
    assert rows_after_reading(board)["first"]["state"] == "interrupted"


def test_run_without_its_files_is_starting(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    for name in ("events.jsonl", "evals.csv", "writer"):
        (tmp_path / "new" / name).write_text("")
    assert rows_after_reading(Board(tmp_path))["new"] == {"id": "new", "state": "starting", "detail": "", "version": 1}


@pytest.mark.parametrize(
    ("name", "text", "detail"),
    [
        ("config.json", "{", "run: {}/config.json "),
        ("config.json", '{"model_type": "bert"}', "run: {}/config.json "),
        ("config.json", '{"format": 99}', "run: {}/config.json has the format 99"),
        (
            "config.json",
            '{"experiment": {"method": "fedavg"}, "method": {}, "resolved": {}, "versions": {}}',
            "run: {}/config.json ",
        ),
        ("config.json", None, "run: {} "),
        ("events.jsonl", None, "run: {} "),
        ("events.jsonl", "1\n", "events: line 1 of {}/events.jsonl "),
        ("events.jsonl", "[" * 100_000 + "\n", "events: line 1 of {}/events.jsonl "),
        ("events.jsonl", "\x00\xff\n", "events: line 1 of {}/events.jsonl "),
        (
            "events.jsonl",
            '{"seq":0,"kind":"checkpoint","t":0,"wall":0,"step":1}\n{"seq":1,"kind":"commit","t":1,"wall":1,"task":7}\n',
            "events: line 2 of {}/events.jsonl ",
        ),
        (
            "events.jsonl",
            '{"seq":0,"kind":"eval","t":"soon","wall":0}\n',
            "events: line 1 of {}/events.jsonl ",
        ),
        ("evals.csv", "a,b\n", "evals: {}/evals.csv "),
        ("evals.csv", "{header}\n1,2\n", "evals: {}/evals.csv "),
        ("evals.csv", "{header}\n1,2,x,4,5,6,7,8\n", "evals: {}/evals.csv "),
        ("summary.json", "[]", "run: {}/summary.json "),
    ],
)
def test_damaged_run_has_a_message_until_it_is_repaired(folder: Path, name: str, text: str | None, detail: str) -> None:
    path = folder / "first" / name
    right = path.read_text()
    board = Board(folder)
    if text is None:
        path.unlink()
    else:
        header = (folder / "first" / "evals.csv").read_text().splitlines()[0]
        path.write_text(text.replace("{header}", header), encoding="latin-1")
    for _ in range(3):
        row = rows_after_reading(board)["first"]
        assert row["state"] == "damaged"
        assert str(row["detail"]).startswith(detail.replace("{}", str(folder / "first")))
        assert "\n" not in str(row["detail"])
    json.dumps(row, allow_nan=False)
    path.with_name("kept").write_text(right)
    path.with_name("kept").rename(path)
    assert rows_after_reading(board)["first"]["state"] == "ended"


NASTY = (None, "x", -1, 1.5, float("nan"), 1e999, 10**400, [], {}, True)
KINDS = [
    {"kind": "dispatch", "task": 90, "client": 1, "fragment": 0, "step": 1, "bytes_down": 3},
    {"kind": "commit", "task": 80, "staleness": 0, "bytes_up": 4, "flops": 2.0},
    {"kind": "round", "round": 0, "coverage_min": 1, "coverage_max": 2, "uncovered": 3},
    {"kind": "drop", "task": 80, "client": 0, "error": "nan", "action": "retry"},
    {"kind": "fault", "task": 80, "worker": 0, "error": "died", "action": "retry"},
    {"kind": "eval", "step": 3},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["kind"])
def test_any_value_in_an_event_is_counted_or_marked_as_damage(folder: Path, kind: dict[str, object]) -> None:
    """The board answers every request in JSON for any value in a log, before and after the event."""
    log = folder / "first" / "events.jsonl"
    before = {
        "seq": 0,
        "kind": "dispatch",
        "t": 0.0,
        "wall": 0.0,
        "task": 80,
        "client": 0,
        "fragment": 0,
        "bytes_down": 1,
    }
    event = {"seq": 1, "t": 1.0, "wall": 1.0, **kind}
    for name in event:
        for value in NASTY:
            log.write_text(f"{json.dumps(before)}\n{json.dumps(event | {name: value})}\n{json.dumps(before)}\n")
            board = Board(folder)
            rows_after_reading(board)
            shown = [ask(board, {"run": ["first"], "y": ["accuracy"]}) for ask in ANSWERS.values()]
            json.dumps(shown, allow_nan=False)


def test_any_value_in_a_configuration_is_shown_or_marked_as_damage(folder: Path) -> None:
    path = folder / "first" / "config.json"
    config = json.loads(path.read_text())
    config["resolved"]["metric_spec"] = {"names": ["accuracy"], "main": "accuracy", "less": []}
    places = [("experiment", name) for name in ("method", "dataset", "seed", "clients", "clock", "updates")]
    places += [("resolved", name) for name in ("limits", "parameters", "metric_spec", "metrics")]
    for part, name in places:
        for value in (*NASTY, {"names": [], "main": "f1", "less": []}, {"steps": "x", "time": None}):
            path.write_text(json.dumps(config | {part: config[part] | {name: value}}))
            board = Board(folder)
            rows_after_reading(board)
            shown = [ask(board, {"run": ["first"], "y": ["accuracy"]}) for ask in ANSWERS.values()]
            json.dumps(shown, allow_nan=False)


def test_events_before_the_damage_are_shown(folder: Path) -> None:
    log = folder / "first" / "events.jsonl"
    log.write_text(log.read_text().replace('"seq":40,', '"seq":4 0,'))
    row = rows_after_reading(Board(folder))["first"]
    assert str(row["detail"]).startswith(f"events: line 41 of {log} ")
    assert row["tasks"]
    # A row is typed as a mapping of objects.
    assert row["last"]["accuracy"] > 0.5  # type: ignore[index]


def test_board_writes_no_file(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    rows_after_reading(Board(folder))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_version_changes_only_with_the_run(folder: Path) -> None:
    board = Board(folder)
    rows_after_reading(board)
    version = board.version
    rows_after_reading(board)
    assert board.version == version == max(run.version for run in board.runs.values())


def test_version_of_a_run_grows_when_the_run_changes(tmp_path: Path) -> None:
    numbers = iter(range(9))
    run = WatchedRun(tmp_path, "none", lambda: next(numbers))
    assert run.version == 0
    run.read_files()
    assert run.version == 1
    run.read_files()
    assert run.version == 1
