"""`fedraa board` on the command line: one sentence for a mistake, an address, and an end at once."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedraa.cli.main import main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing"], "folder: missing is not there; give a folder of run directories"),
        (["file"], "folder: file is a file; give a folder of run directories"),
        ([".", "--port", "65536"], "port: got 65536; it is a number from 0, any that is free, to 65535"),
        ([".", "--port", "-1"], "port: got -1; it is a number from 0, any that is free, to 65535"),
        ([".", "--port", "TAKEN"], "port: TAKEN cannot be had: Address already in use; 0 takes any that is free"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["board", *(word.replace("TAKEN", port) for word in arguments)]) == 2
    assert capsys.readouterr() == ("", f"fedraa: {said.replace('TAKEN', port)}\n")


def test_it_prints_its_address_and_ends_at_once(tmp_path: Path) -> None:
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
    assert line.endswith("/ until Ctrl-C\n")
    started = time.monotonic()
    board.send_signal(signal.SIGINT)
    rest = board.communicate(timeout=30)
    assert time.monotonic() - started < 10  # most of it is what torch takes to be put away
    assert (board.returncode, rest) == (0, ("", ""))
