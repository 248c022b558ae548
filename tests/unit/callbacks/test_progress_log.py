"""The lines that a run logs: one per evaluation, one after silence, none if it is quiet, and their output stream."""

import logging
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import fedraa as fl
from fedraa import waiting
from fedraa.callbacks import Limits, Progress, ProgressBar, ProgressLog, RunStart
from fedraa.callbacks import progress_log as progress_log_module
from fedraa.cli.display import print_result
from fedraa.cli.main import main
from fedraa.config.experiment import Experiment

FIELDS = {"method": "fedavg", "rounds": 3, "hidden": (8,), "clients": 3, "local_steps": 2, "engine": "local"}
FLAGS = shlex.split("--method fedavg --rounds 3 --hidden 8 --clients 3 --local-steps 2 --engine local")
EVALUATION = re.compile(r"\[\d+\.\d s\] round (\d+) of 3 \| t (\S+) \| accuracy (\S+) \| loss (\S+)")
START = RunStart(Experiment(), Path("run"), Limits(200, 8.0, None), resumed=False)


def evaluations(lines: list[str]) -> list[tuple[int, float, float, float]]:
    """Return step, t, accuracy and loss of every line of an evaluation."""
    found = [EVALUATION.fullmatch(line) for line in lines]
    return [(int(m[1]), float(m[2]), float(m[3]), float(m[4])) for m in found if m]


def in_file(history: fl.History) -> list[tuple[int, float, float, float]]:
    """Return step, t, accuracy and loss of every row of evals.csv."""
    columns = ("step", "t", "accuracy", "loss")
    return [
        (int(step), *(float(f"{value:.4g}") for value in rest))  # type: ignore[misc]
        for step, *rest in history.evals[list(columns)].itertuples(index=False)
    ]


def test_run_logs_every_evaluation_and_the_next_commands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedraa"):
        history = fl.run(**FIELDS, out=tmp_path / "run")
    assert evaluations(caplog.messages) == in_file(history)
    assert len(in_file(history)) == 4
    assert {record.name for record in caplog.records} == {"fedraa"}
    last = caplog.messages[-1]
    for command in ("report", "replay"):
        assert f"fedraa {command} {tmp_path / 'run'}" in last
    assert f"fedraa board {tmp_path};" in last


def test_method_object_is_shown_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    method = replace(fl.method("fedavg"), name="mine")
    with caplog.at_level(logging.INFO, "fedraa"):
        history = fl.run(**FIELDS | {"method": method}, out=tmp_path / "run")
        fl.resume(history.directory, rounds=4)
    starts = [re.search(r"\] (\S+) (runs|resumes) on digits", line) for line in caplog.messages]
    assert [match.groups() for match in starts if match] == [("mine", "runs"), ("mine", "resumes")]
    print_result(history)
    assert capsys.readouterr().out.strip().startswith("mine on digits")


def test_quiet_run_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedraa"):
        history = fl.run(**FIELDS, out=tmp_path / "run", quiet=True)
        fl.resume(history.directory, rounds=4)
        fl.resume(history.directory, rounds=5, quiet=True)
    assert caplog.messages == []


def test_resume_logs_new_evaluations_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = fl.run(**FIELDS, out=tmp_path / "run", quiet=True)
    with caplog.at_level(logging.INFO, "fedraa"):
        fl.resume(history.directory, rounds=5, quiet=False)
    steps = [re.search(r"\] round (\d+) of 5 \| t \S+ \| acc", line) for line in caplog.messages]
    assert [int(match[1]) for match in steps if match] == [4, 5]


def test_compare_logs_the_number_method_and_seed_of_each_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fedraa"):
        fl.compare(["fedavg", "fedprox"], [0], rounds=1, hidden=(8,), clients=3, engine="local", out=tmp_path / "all")
    lines = [line for line in caplog.messages if " of 2: " in line]
    parts = [re.search(r" (\d) of 2: (\S+) seed 0 .* round 1 of 1 .* accuracy 0\.\d+$", line) for line in lines]
    assert [part and part.groups() for part in parts] == [("1", "fedavg"), ("2", "fedprox")]


def test_long_silence_ends_with_a_line_about_the_current_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "SILENCE_S", 0.05)
    log = ProgressLog("run 2 of 3")
    with caplog.at_level(logging.INFO, "fedraa"):
        log.on_prepare("reading digits")
        wait_for(caplog, "run 2 of 3 | reading digits")
        log.on_prepare(None)
        caplog.clear()
        time.sleep(0.15)
        assert caplog.messages == []
        log.on_start(START)
        log.on_prepare("starting Ray")
        wait_for(caplog, "run 2 of 3 | starting Ray")
        log.on_progress(Progress(50, 2.0, 0.9, 3, START.limits, 1.25, 2, 2))
        wait_for(caplog, "update 50 of 200 | t 2 of 8 | last accuracy 0.9 | 3 tasks in flight | 2/2 busy")
        log.on_progress(Progress(51, 2.0, 0.9, 1, START.limits, 1.25, 1, 2))
        wait_for(caplog, "update 51 of 200 | t 2 of 8 | last accuracy 0.9 | 1 task in flight | 1/2 busy")
        log.on_close()


def wait_for(caplog: pytest.LogCaptureFixture, text: str) -> None:
    give_up = time.monotonic() + 10
    while not any(line.endswith(text) for line in caplog.messages):
        assert time.monotonic() < give_up, caplog.messages
        time.sleep(0.01)


def test_configured_logging_gets_each_line_once_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fedraa"), waiting.printed_log(to_stdout=True):
        waiting.logger.info("a line")
    assert caplog.messages == ["a line"]
    assert capsys.readouterr() == ("", "")


def test_lines_are_printed_until_the_last_run_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    level = waiting.logger.level
    with waiting.printed_log(to_stdout=True):
        with waiting.printed_log():
            waiting.logger.info("one")
        waiting.logger.info("two")
        waiting.logger.warning("three")
    waiting.logger.info("four")
    assert capsys.readouterr() == ("one\ntwo\n", "three\n")
    assert waiting.logger.handlers == []
    assert waiting.logger.level == level


def test_lines_below_the_level_of_the_logger_are_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    level = waiting.logger.level
    waiting.logger.setLevel(logging.WARNING)
    try:
        fl.run(**FIELDS, out=tmp_path / "run")
        assert waiting.logger.level == logging.WARNING
    finally:
        waiting.logger.setLevel(level)
    assert capsys.readouterr() == ("", "")


def test_progress_bar_in_a_terminal_replaces_the_log_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedraa.callbacks.make_callbacks.is_shown", lambda: True)
    with caplog.at_level(logging.INFO, "fedraa"):
        fl.run(**FIELDS, out=tmp_path / "run", callbacks=[ProgressBar()])
    assert caplog.messages == []


def test_last_step_without_a_file_is_before_all_steps(tmp_path: Path) -> None:
    assert progress_log_module._last_step(tmp_path) == -1


def test_command_in_a_pipe_prints_lines_to_stdout(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedraa", "run", *FLAGS, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert evaluations(done.stdout.splitlines()) == in_file(fl.History(tmp_path / "run"))
    assert f"fedraa replay {tmp_path / 'run'}" in done.stdout
    assert "accuracy" not in done.stderr


def test_quiet_command_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *FLAGS, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")


def test_script_without_logging_prints_lines_to_stderr(tmp_path: Path) -> None:
    script = f"import fedraa as fl\nfl.run(**{FIELDS!r}, out={str(tmp_path / 'run')!r})\nprint('mine')\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert evaluations(done.stderr.splitlines()) == in_file(fl.History(tmp_path / "run"))
    assert done.stdout == "mine\n"
