"""`fedraa board` on the command line: one error line for wrong arguments, the address, and the end after Ctrl-C."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedraa.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["missing"], "folder: missing "),
        (["file"], "folder: file "),
        ([".", "--port", "65536"], "port: got 65536; "),
        ([".", "--port", "-1"], "port: got -1; "),
        ([".", "--port", "TAKEN"], "port: got TAKEN; "),
    ],
)
def test_wrong_argument_exits_with_code_2_and_one_error_line(
    arguments: list[str],
    start: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["board", *(word.replace("TAKEN", port) for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedraa: {start.replace('TAKEN', port)}")
    assert err.count("\n") == 1


def test_board_prints_its_address_and_ends_after_ctrl_c(tmp_path: Path) -> None:
    board = subprocess.Popen(
        [sys.executable, "-m", "fedraa", "board", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert board.stdout is not None
    line = board.stdout.readline()
    assert line.startswith(f"{tmp_path} is shown at http://127.0.0.1:")
    assert line.endswith("/ until you press Ctrl-C\n")
    board.send_signal(signal.SIGINT)
    rest = board.communicate(timeout=30)
    assert (board.returncode, rest) == (0, ("", ""))
