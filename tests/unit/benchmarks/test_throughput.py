"""The settings that the throughput benchmark refuses before it begins, and the tasks of its bare loop."""

from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from refusals import refuses

from benchmarks.system.bare import BareProcesses
from benchmarks.system.throughput import main


@pytest.mark.parametrize(
    ("arguments", "field", "names"),
    [
        ({"clients": (10, 0)}, "clients", ["at least 1"]),
        ({"clients": (10,), "samples": 5}, "clients", ["got 10", "5"]),
        ({"models": ("mnist", "tiny")}, "models", ["'tiny'", "small", "mnist", "large", "widest"]),
        ({"repeats": 0}, "repeats", ["got 0"]),
        ({"out": Path("nowhere/out.json")}, "out", ["nowhere"]),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(arguments: dict[str, Any], field: str, names: list[str]) -> None:
    with refuses(field, *names):
        main(**arguments)


def test_bare_loop_gives_the_next_task_to_an_idle_process() -> None:
    """Each task ran in the process of its client, so that one process waited and fedraa's ratio was too small."""
    tasks = [(0, 8)] * 6
    bare = object.__new__(BareProcesses)
    pairs = [Pipe() for _ in range(2)]
    bare._pipes = [ours for ours, _ in pairs]
    trained: list[list[object]] = [[], []]

    def serve(pipe: Connection, requests: list[object]) -> None:
        for request in iter(pipe.recv, None):
            requests.append(request)
            pipe.send(0.5)

    for (_, theirs), requests in zip(pairs, trained, strict=True):
        Thread(target=serve, args=(theirs, requests), daemon=True).start()
    assert bare.tasks(tasks).cpu >= 0.5 * len(tasks)
    assert [*trained[0], *trained[1]] == tasks
    assert all(trained)
    for ours, _ in pairs:
        ours.send(None)
