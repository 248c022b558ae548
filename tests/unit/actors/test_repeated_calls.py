"""Calls of the server that Ray repeats have no second effect."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actors.cluster.run_dir_sync import Stamp
from actors.server import parameter_server
from actors.server.parameter_server import ParameterServer
from fedraa.errors import RunFailed


class Server(ParameterServer):
    """A server without a run, which counts the executions."""

    def __init__(self, directory: Path, error: Exception | None = None) -> None:
        self.executions = 0
        self._directory = directory
        self._error = error
        self._outcome = None
        self._filling = threading.Lock()
        self._filled = None

    def _execute(self, resume: bool) -> bool:
        self.executions += 1
        if self._error is not None:
            raise self._error
        return resume


def test_a_repeated_execution_returns_the_same_outcome(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert [server.execute(True) for _ in range(3)] == [True] * 3
    assert server.executions == 1


def test_a_repeated_execution_raises_the_same_error(tmp_path: Path) -> None:
    server = Server(tmp_path, RunFailed("workers", "none is left"))
    for _ in range(2):
        with pytest.raises(RunFailed):
            server.execute(False)
    assert server.executions == 1


def test_a_repeated_transfer_of_files_waits_for_the_first_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver starts the run after the answer, so that a later copy would overwrite what the run writes."""
    writes: list[Path] = []
    begun, released = threading.Event(), threading.Event()

    def fill(directory: Path, files: object) -> dict[str, Stamp]:
        writes.append(directory)
        begun.set()
        assert released.wait(10.0)
        return {"config.json": (2, 1)}

    monkeypatch.setattr(parameter_server, "fill", fill)
    server = Server(tmp_path)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(server.take, {"events.jsonl": b""})
        assert begun.wait(10.0)
        second = threads.submit(server.take, {"events.jsonl": b""})
        assert not second.done()
        released.set()
        assert first.result(10.0) == second.result(10.0) == {"config.json": (2, 1)}
    assert writes == [tmp_path]
