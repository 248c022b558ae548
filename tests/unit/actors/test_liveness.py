"""A liveness probe: the silence after which an actor counts as frozen."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import runtime
from actors.cluster import processes
from actors.pool import liveness
from actors.pool.liveness import Heartbeat, LivenessProbe

HEARTBEAT = Heartbeat(every=1.0, bound=20.0, far=150.0)


def silence_when_frozen(monkeypatch: pytest.MonkeyPatch, node: str) -> float:
    """Return the silence after which an actor of this node counts as frozen; this process is on the node "here"."""
    clock, answers = [0.0], [True]
    ping: Callable[[], Any] = SimpleNamespace
    monkeypatch.setattr(liveness, "load_factor", lambda: 1.0)
    monkeypatch.setattr(runtime, "node_id", lambda: "here")
    monkeypatch.setattr(runtime, "monotonic", lambda: clock[0])
    monkeypatch.setattr(runtime, "wait", lambda refs, timeout: (refs if answers[0] else [], []))
    # No process has the id 0, so that its CPU time is 0.
    monkeypatch.setattr(runtime, "get", lambda ref: (node, 0, 0.0))
    probe = LivenessProbe(SimpleNamespace(ping=SimpleNamespace(remote=ping)), HEARTBEAT)
    assert probe.silent_seconds() is None
    answers[0] = False
    while (silence := probe.silent_seconds()) is None:
        clock[0] += 1.0
    return silence


@pytest.mark.parametrize(("node", "has_proc", "bound"), [("here", True, 20), ("here", False, 150), ("far", True, 150)])
def test_bound_is_short_only_if_the_cpu_time_of_the_process_is_readable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node: str, has_proc: bool, bound: float
) -> None:
    process = tmp_path / str(os.getpid())
    monkeypatch.setattr(processes, "PROC", tmp_path)
    if has_proc:
        process.mkdir()
        (process / "stat").write_text("1 (python) R" + " 0" * 40)
    silence = silence_when_frozen(monkeypatch, node)
    assert bound < silence <= bound + 2
