"""A tracking service that fails at the start refuses the run, and one that fails later ends only its callback.

A service that does not answer holds up neither the run nor its end.
"""

import contextlib
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from refusals import refuses

from fedraa.api import resume, run
from fedraa.callbacks import tracker
from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event, RunStart
from fedraa.callbacks.tracker import Tracker
from fedraa.config.experiment import Experiment
from fedraa.errors import Interrupted, RunWarning


class Service(Tracker):
    """A service that fails at one of its calls."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.calls: list[str] = []

    def open(self, run: RunStart) -> None:
        self._call("open")

    def write_metrics(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        self._call(f"write {step}")

    def write_end(self, event: object) -> None:
        self._call("end")

    def shut(self) -> None:
        self._call("shut")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.failing:
            raise OSError("the service is away")


def experiment(out: Path) -> Experiment:
    fields = {"clients": 4, "hidden": (8,), "local_steps": 2, "updates": 8, "eval_every": 4, "quiet": True}
    return Experiment(engine="local", out=out, **fields)


def test_service_that_cannot_start_refuses_the_run_and_is_not_called_again(tmp_path: Path) -> None:
    service = Service("open")
    with refuses("callbacks", "Service", "the service is away"):
        run(experiment(tmp_path / "run"), callbacks=[service])
    assert service.calls == ["open"]


@pytest.mark.parametrize(
    ("failing", "calls"),
    [
        ("write 4", ["open", "write 0", "write 4"]),
        ("end", ["open", "write 0", "write 4", "write 8", "end"]),
        ("shut", ["open", "write 0", "write 4", "write 8", "end", "shut"]),
    ],
)
def test_service_that_fails_later_ends_only_its_callback(failing: str, calls: list[str], tmp_path: Path) -> None:
    service, healthy = Service(failing), Service("never")
    with pytest.warns(RunWarning, match="the service is away"):
        history = run(experiment(tmp_path / "run"), callbacks=[service, healthy])
    assert service.calls == calls
    assert healthy.calls == ["open", "write 0", "write 4", "write 8", "end", "shut"]
    assert history.summary["steps"] == 8


class Stuck(Service):
    """A service whose calls do not return from a certain call on."""

    def __init__(self, stuck: str) -> None:
        super().__init__("never")
        self.stuck = stuck
        self.released = threading.Event()

    def _call(self, name: str) -> None:
        super()._call(name)
        if name == self.stuck:
            self.released.wait()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "START_TIMEOUT_S", 0.2)
    monkeypatch.setattr(tracker, "END_TIMEOUT_S", 0.2)


@pytest.mark.usefixtures("short_waits")
def test_service_that_does_not_answer_at_the_start_refuses_the_run(tmp_path: Path) -> None:
    service = Stuck("open")
    with refuses("callbacks", "Stuck", "0.2"):
        run(experiment(tmp_path / "run"), callbacks=[service])
    assert service.calls == ["open"]


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("stuck", ["write 0", "write 8", "end", "shut"])
def test_run_ends_while_its_service_does_not_answer(stuck: str, tmp_path: Path) -> None:
    service = Stuck(stuck)
    with pytest.warns(RunWarning, match="Stuck") as caught:
        history = run(experiment(tmp_path / "run"), callbacks=[service])
    assert len(caught) == 1
    assert history.summary["steps"] == 8
    assert service.calls[-1] == stuck
    # A service that answers later still gets the values of the run.
    service.released.set()
    deadline = time.monotonic() + 60
    while service.calls[-1] != "shut" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert service.calls == ["open", "write 0", "write 4", "write 8", "end", "shut"]


class Web(Tracker):
    """A service behind a port, whose client repeats each request until it is answered."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.abandoned = False

    def open(self, run: RunStart) -> None:
        pass

    def write_metrics(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        while not self.abandoned:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=600)
                return
            time.sleep(0.05)

    def shut(self) -> None:
        pass


class SigtermAt(Callback):
    """A callback that sends SIGTERM to this process at a commit."""

    def __init__(self, commit: int) -> None:
        self.commit = commit
        self.commits = 0

    def on_commit(self, event: Event) -> None:
        self.commits += 1
        if self.commits == self.commit:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("kind", ["silent", "refusing"])
def test_sigterm_ends_a_run_whose_service_is_silent_or_refuses(kind: str, tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        # The kernel accepts connections, and no program answers them.
        if kind == "silent":
            server.listen()
        service = Web(server.getsockname()[1])
        began = time.monotonic()
        with pytest.raises(Interrupted), pytest.warns(RunWarning, match="Web"):
            run(experiment(tmp_path / "run"), callbacks=[service, SigtermAt(6)])
        assert time.monotonic() - began < 60
        service.abandoned = True
    assert resume(tmp_path / "run").summary["steps"] == 8
