"""The same seed gives the same run on every engine; on the wall clock, devices are as slow as modelled."""

import os
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from equal_runs import lines
from execution import run_warm

from fedraa import Experiment, replay, run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FIRST_RUN: dict[str, Any] = {
    "method": "fed-raa",
    "dataset": "digits",
    "clients": 10,
    "fragments": 4,
    "compute": "1:0.5,3:0.5",
    "updates": 200,
    "seed": 0,
}
# The name of a folder may have letters of any script, and bytes that are not valid UTF-8.
ANY_NAME = os.fsdecode("josé 日本 😀 'q\" %20{} \n".encode() + b"\xff" + b"a" * 200)
WORK = (0.1, 0.2, 0.3, 0.4)  # share of the model in each fragment
ENGINES: dict[str, dict[str, Any]] = {
    "local": {"engine": "local"},
    "ray 2": {"engine": "ray", "workers": 2},
}


def test_every_engine_and_number_of_workers_gives_the_same_run(warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    folder = tmp_path / ANY_NAME
    histories = {name: run(Experiment(**FIRST_RUN, **engine, out=folder / name)) for name, engine in ENGINES.items()}
    histories["one worker"] = run_warm(warm_workers[:1], tmp_path / "one", **FIRST_RUN)
    first = histories["local"]
    assert first.summary["steps"] == 200
    assert first.evals["accuracy"].iloc[-1] >= 0.9
    for history in histories.values():
        assert history.summary["model_sha256"] == first.summary["model_sha256"]
        assert lines(history.directory) == lines(first.directory)
        ours, theirs = (torch.load(h.directory / "model.pt", weights_only=True) for h in (history, first))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert "consistent" in replay(history.directory)


def test_rounds_are_the_same_on_ray(warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    flags: dict[str, Any] = {"method": "fed-raa-sync", "rounds": 4, "partition": "dirichlet"}
    here = run(Experiment(**flags, engine="local", out=tmp_path / "local"))
    there = run_warm(warm_workers, tmp_path / "ray", **flags)
    assert here.summary["model_sha256"] == there.summary["model_sha256"]
    assert lines(here.directory) == lines(there.directory)


@pytest.mark.alone
@pytest.mark.parametrize("clients", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_wall_clock_keeps_device_speeds_and_sends_next_tasks_without_delay(clients: int, tmp_path: Path) -> None:
    # A cost of 1 is five epochs of the full model on 1437 / clients samples at speed 1. The time scale is chosen so
    # that the shortest task (0.1 of the model, 160 samples, speed 3) lasts 0.3 s, in which a worker on a busy machine
    # can train it.
    history = run(
        Experiment(
            **FIRST_RUN | {"clients": clients, "updates": 12 * clients},
            engine="ray",
            workers=clients,
            clock="wall",
            time_scale=0.3 * 3 / 0.1 * 1437 / clients * 5 / 160,
            duration_jitter=0,
            local_steps=5,
            eval_every=12 * clients,
            out=tmp_path / "run",
        )
    )
    log = history.lines()
    sent = {line["task"]: line for line in log if line["kind"] == "dispatch"}
    done = {line["task"]: line["t"] for line in log if line["kind"] == "commit"}
    # A client's first task may wait for its worker's process to start.
    started = max(min(t for task, t in done.items() if sent[task]["client"] == client) for client in range(clients))
    per_unit: dict[bool, list[float]] = defaultdict(list)
    waits = []
    for task, t in done.items():
        client, fragment = sent[task]["client"], sent[task]["fragment"]
        following = [line["t"] for line in sent.values() if line["client"] == client and line["t"] >= t]
        waits += [min(following) - t] if following else []
        if sent[task]["t"] >= started:
            per_unit[client < clients // 2].append((t - sent[task]["t"]) / WORK[fragment])
    assert median(per_unit[True]) / median(per_unit[False]) == pytest.approx(3, rel=0.1)
    assert len(waits) > 8 * clients
    assert max(waits) < 0.05  # seconds from a client's commit to its next task
