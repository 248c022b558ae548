"""The metrics of a run for Ray: every event counts, although the counters of Ray are called only sometimes."""

from collections import defaultdict
from typing import Any, ClassVar

import pytest

from actors.cluster import metrics
from actors.cluster.metrics import NAMES, Metrics
from actors.server.relay import Audience, Relay
from fedraa.callbacks.callback_list import CallbackList
from fedraa.callbacks.events import Limits, Progress


class Recorder:
    """Stands for a counter, a gauge and a histogram of Ray."""

    calls: ClassVar[dict[str, list[tuple[float, Any]]]] = defaultdict(list)

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def set_default_tags(self, tags: dict[str, str]) -> None:
        """Accept the tags."""

    def inc(self, amount: float = 1.0, tags: dict[str, str] | None = None) -> None:
        assert amount > 0
        self.calls[self.name].append((amount, tags))

    def observe(self, value: float) -> None:
        self.calls[self.name].append((value, None))

    set = observe


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[float, Any]]]:
    monkeypatch.setattr(Recorder, "calls", defaultdict(list))
    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(metrics, kind, Recorder)
    return Recorder.calls


def total(calls: list[tuple[float, Any]], way: str | None = None) -> float:
    return sum(amount for amount, tags in calls if (tags or {}).get("way") == way)


def test_counters_have_every_event_after_few_calls(calls: dict[str, list[tuple[float, Any]]]) -> None:
    own = CallbackList([Metrics("run")], progress_seconds=3600.0)
    relay = Relay(own, Audience(frozenset(), frozenset()))
    limits = Limits(steps=1000, time=None, accuracy=None)
    progress = Progress(step=1, t=0.0, metric=None, in_flight=1, limits=limits, staleness=0.0, busy=1, workers=2)
    for number in range(1000):
        relay.tell({"kind": "dispatch", "bytes_down": 8})
        relay.tell({"kind": "commit", "bytes_up": number % 2, "staleness": 0})
        relay.progress(progress)
    relay.finish()
    assert total(calls[NAMES["updates"]]) == 1000
    assert total(calls[NAMES["bytes"]], "down") == 8000
    assert total(calls[NAMES["bytes"]], "up") == 500
    assert len(calls[NAMES["staleness"]]) == 1000
    assert len(calls[NAMES["updates"]]) == 2
    assert len(calls[NAMES["mix"]]) == 1


def test_a_run_without_traffic_does_not_count_bytes(calls: dict[str, list[tuple[float, Any]]]) -> None:
    relay = Relay(CallbackList([Metrics("run")]), Audience(frozenset(), frozenset()))
    relay.tell({"kind": "dispatch", "bytes_down": 0})
    relay.finish()
    assert calls[NAMES["bytes"]] == []
