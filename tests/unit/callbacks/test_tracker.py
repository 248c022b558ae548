"""A tracking service that fails at the start refuses the run, and one that fails later ends only its callback."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from refusals import refuses

from fedraa.api import run
from fedraa.callbacks.events import RunStart
from fedraa.callbacks.tracker import Tracker
from fedraa.config.experiment import Experiment
from fedraa.errors import RunWarning


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
