"""SIGTERM and SIGHUP while a command waits: code 130, one sentence, no new files. Named pipes are refused as data."""

import os
import signal
from pathlib import Path

import pytest

from fedraa.cli.exit_code import TERMINATED, exit_code, interrupt_on_termination
from fedraa.cli.main import main
from fedraa.engine.stop_signals import TERMINATION

pytestmark = pytest.mark.usefixtures("default_sigterm_handler")

WAITS = """
import os, signal, threading

def data():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    return open({!r}).read()
"""


@pytest.mark.parametrize("number", TERMINATION)
def test_termination_exits_with_code_130_and_its_handler_is_removed(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        with interrupt_on_termination():
            signal.raise_signal(number)

    assert exit_code(command) == 130
    assert capsys.readouterr().err == f"fedraa: {TERMINATED}\n"
    assert signal.getsignal(number) is signal.SIG_DFL


def test_sigterm_ends_a_custom_dataset_that_waits_for_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "waits_for_data.py").write_text(WAITS.format(str(tmp_path / "pipe")))
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["run", "--dataset", "waits_for_data:data", "--engine", "local", "--out", str(tmp_path / "run")]
    assert main(words) == 130
    err = capsys.readouterr().err
    assert err.strip().startswith("fedraa: stopped before ")
    assert "\n" not in err.strip()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dataset", ["{}/pipe.csv", "csv('{}/whole.csv', test='{}/pipe.csv')", "npy:{}"])
def test_named_pipe_as_data_is_refused(dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "whole.csv").write_text("a,label\n1,0\n2,1\n")
    for name in ("pipe.csv", "x_train.npy"):
        os.mkfifo(tmp_path / name)
    words = ["run", "--dataset", dataset.format(tmp_path, tmp_path), "--engine", "local"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "pipe.csv" in (err := capsys.readouterr().err) or "x_train.npy" in err
