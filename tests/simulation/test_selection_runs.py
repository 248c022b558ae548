"""Runs with a selection of clients: a killed run resumes with the same bits, and its directory replays."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equal_runs import SMALL, check_resume
from refusals import refuses
from torch import nn

import fedraa
from benchmarks.system.killing import KillAt, Killed
from fedraa import Experiment, resume, run
from fedraa.engine.build import build_run
from fedraa.errors import RunFailed, RunWarning
from fedraa.rundir.history import History


class LeastTrained(fedraa.Selection):
    """A custom selection with state: it takes in turn the clients with the fewest tasks and with the lowest losses."""

    def __init__(self) -> None:
        self.calls = 0

    def __repr__(self) -> str:
        return "LeastTrained"

    def choose(self, view: fedraa.SelectionContext, rng: np.random.Generator) -> list[int]:
        self.calls += 1
        values = view.participations if self.calls % 2 else view.losses
        return sorted(view.candidates.tolist(), key=values.__getitem__)[: min(3, view.count)]


def check_resume_and_replay(fields: dict[str, Any], directory: Path, kill_at: int) -> History:
    """Assert that a run that is killed after `kill_at` commits and resumed equals an undisturbed one."""
    # A run with a custom object needs the object again.
    objects = {name: type(value)() for name, value in fields.items() if isinstance(value, fedraa.Selection)}
    return check_resume(SMALL | fields, directory, kill_at, **objects)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "participation": "oort:3"},
        {"method": "heterofl", "participation": "oort(count=3, exploration=0.3, window=2)"},
        {"method": "fedrolex", "participation": "oort:3"},
        {"method": "fed-raa-sync", "participation": "power-of-choice:3"},
        {"method": "fedavg", "participation": "weighted:3"},
        {"method": "scaffold", "participation": "round-robin:3"},
        {"method": "fedavg", "participation": "available:3", "availability": "daily:0.4", "availability_period": 3.0},
        {"method": "fedavg", "participation": "tifl(count=2, tiers=3, rounds=6, interval=1)"},
        {"method": "fedavg", "participation": LeastTrained()},
    ],
    ids=lambda fields: f"{fields['method']}-{fields['participation']}",
)
def test_killed_rounds_with_a_selection_resume_and_replay(fields: dict[str, Any], tmp_path: Path) -> None:
    check_resume_and_replay({**fields, "rounds": 8}, tmp_path, kill_at=13)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fed-raa", "next_client": "oort"},
        {"method": "fedbuff", "next_client": "power-of-choice", "buffer_size": 2},
        {"method": "fedasync", "next_client": "round-robin", "clock": "virtual"},
        {"method": "fedasync", "next_client": "weighted"},
        {"method": "fedasync", "next_client": "available", "availability": "daily:0.4", "availability_period": 3.0},
        {"method": "fed-raa", "next_client": LeastTrained()},
        {"method": "heterofl-async", "next_client": "oort"},
        {"method": "fedrolex-async", "next_client": "power-of-choice"},
        {"method": "salf-async", "next_client": "round-robin"},
    ],
    ids=lambda fields: f"{fields['method']}-{fields['next_client']}",
)
def test_selection_of_the_next_client_resumes_and_keeps_the_concurrency(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = check_resume_and_replay({**fields, "updates": 20, "concurrency": 3}, tmp_path, kill_at=13)
    at_work: set[object] = set()
    for line in whole.lines():
        if line["kind"] == "dispatch":
            assert line["client"] not in at_work
            at_work.add(line["client"])
            assert len(at_work) <= 3
        elif line["kind"] == "commit":
            at_work.discard(line["client"])


SLOW: dict[str, Any] = {"duration_jitter": 0.3, "compute": "lognormal:1"}


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "participation": "sample:3", "over_selection": 1.6},
        {"method": "heterofl", "participation": "oort:3", "over_selection": 1.3},
        {"method": "fedavg", "participation": "sample:4", "deadline": 0.05},
        {"method": "scaffold", "participation": "sample:4", "deadline": 0.05, "over_selection": 1.5},
        {"method": "fednova", "deadline": 0.15, "late": "partial", "local_steps": 8},
        {"method": "heterofl", "deadline": 0.06, "late": "partial", "local_steps": None, "local_epochs": 1},
        {"method": "fed-raa-sync", "deadline": 0.05, "late": "partial", "local_steps": 8},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_runs_with_lost_or_partial_work_resume_and_replay(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = check_resume_and_replay({**SLOW, **fields, "rounds": 8}, tmp_path, kill_at=9)
    kinds = [line["kind"] for line in whole.lines()]
    cut = [line for line in whole.lines() if "cut_at" in line]
    if fields.get("late") == "partial":
        assert cut
    else:
        assert not cut
        assert "lost" in kinds


def test_wall_clock_run_with_a_selection_replays(tmp_path: Path) -> None:
    fields = {**SMALL, "method": "fed-raa", "next_client": "oort", "concurrency": 3, "updates": 20}
    history = run(Experiment(**fields, clock="wall", time_scale=0.01, out=tmp_path / "run"))
    assert "consistent" in fedraa.replay(history.directory)


def test_rounds_with_a_deadline_fail_when_no_device_comes_back(tmp_path: Path) -> None:
    """Such a run also fails without a deadline. A run of empty rounds would hide that no client trains."""
    trace = tmp_path / "gone.csv"
    trace.write_text("client,start,end\n" + "".join(f"{client},0,0.2\n" for client in range(8)))
    fields = {**SMALL, "method": "fedavg", "availability": trace, "deadline": 0.1, "rounds": 30}
    with pytest.raises(RunFailed) as caught:
        run(Experiment(**fields, out=tmp_path / "run"))
    assert caught.value.field == "availability"
    kinds = [line["kind"] for line in History(tmp_path / "run").lines()]
    assert kinds.count("round") < 10
    assert "commit" in kinds


class SlowModel(nn.Module):
    """A linear model for digits, of which each training step takes at least 30 ms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(0.03)
        return self.linear(x.flatten(1))


WALL: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "hidden"}
WALL |= {"method": "fedavg", "clock": "wall", "time_scale": 1e-3, "rounds": 3, "eval_every": 3}


def test_deadline_of_the_wall_clock_loses_late_tasks(tmp_path: Path) -> None:
    """Eight tasks of 60 ms each, one after the other: about four arrive before a deadline of 250 ms."""
    fields = {**WALL, "deadline": 0.25, "out": tmp_path / "run"}
    with pytest.raises(Killed):
        run(Experiment(**fields), model=SlowModel(), callbacks=[KillAt(1)])
    history = resume(tmp_path / "run", model=SlowModel())
    started = 0.0
    lost = 0
    for line in history.lines():
        if line["kind"] == "lost":
            lost += 1
            assert line["reason"] == "deadline"
            assert line["t"] >= started + 0.25
        elif line["kind"] == "round":
            started = line["t"]
    assert lost > 0
    assert history.summary["steps"] == 3
    assert sum(line["kind"] == "commit" for line in history.lines()) == 24 - lost > 0
    assert "consistent" in fedraa.replay(history.directory)


def test_partial_work_on_the_wall_clock_follows_the_measured_times(tmp_path: Path) -> None:
    """By its modelled cost a task of 40 steps meets the deadline, but in real time its steps take over 1.2 s."""
    fields = {**WALL, "clients": 2, "local_steps": 40, "deadline": 0.6, "late": "partial", "rounds": 8}
    with pytest.raises(Killed):
        run(Experiment(**fields, out=tmp_path / "run"), model=SlowModel(), callbacks=[KillAt(1)])
    history = resume(tmp_path / "run", model=SlowModel())
    steps = [line.get("cut_at", 40) for line in history.lines() if line["kind"] == "dispatch"]
    assert steps[:2] == [40, 40]
    assert max(steps[2:]) < 40
    flops = {line["flops"] for line in history.lines() if line["kind"] == "commit"}
    assert flops
    assert "consistent" in fedraa.replay(history.directory)


def test_deadline_of_the_wall_clock_before_every_update_keeps_the_model(tmp_path: Path) -> None:
    fields = {**WALL, "clients": 2, "deadline": 0.02, "out": tmp_path / "run"}
    with pytest.warns(RunWarning):
        history = run(Experiment(**fields), model=SlowModel())
    kinds = [line["kind"] for line in history.lines()]
    assert kinds.count("lost") == 6
    assert "commit" not in kinds
    trained = history.load_model(SlowModel())
    assert torch.equal(trained.model.linear.weight, SlowModel().linear.weight)
    assert "consistent" in fedraa.replay(history.directory)


def test_power_of_choice_takes_the_clients_with_the_highest_loss(tmp_path: Path) -> None:
    """With all clients as candidates, each cohort follows from the losses in the log."""
    fields = {**SMALL, "method": "fedavg", "participation": "power-of-choice(count=3, candidates=8)", "rounds": 8}
    losses = np.full(8, np.inf)
    cohort: list[int] = []
    for line in run(Experiment(**fields, out=tmp_path / "run")).lines():
        if line["kind"] == "dispatch":
            cohort.append(int(line["client"]))
        elif line["kind"] == "round":
            cohort.clear()
        elif line["kind"] == "commit":
            if len(cohort) == 3:
                assert cohort == sorted(np.argsort(-losses, kind="stable")[:3].tolist())
                cohort = [*cohort, -1]
            losses[int(line["client"])] = line["train_loss"]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("participation", {"method": "fedavg", "participation": "oort"}),
        ("participation", {"method": "fedavg", "participation": "oort:0"}),
        ("power-of-choice.candidates", {"method": "fedavg", "participation": "power-of-choice(count=3, candidates=2)"}),
        ("power-of-choice.candidates", {"method": "fedavg", "participation": "power-of-choice(count=3, candidates=9)"}),
        ("participation.count", {"method": "fedavg", "participation": "oort:9"}),
        ("participation.count", {"method": "fedavg", "participation": "tifl:2"}),
        ("late", {"method": "splitfed", "hidden": (8, 8), "deadline": 1.0, "late": "partial"}),
        ("next_client", {"method": "fed-raa", "next_client": "oort:3", "concurrency": 3}),
        ("next_client", {"method": "fed-raa", "next_client": "oort"}),
        ("next_client", {"method": "fed-raa", "next_client": "sample:3", "concurrency": 3}),
        ("next_client", {"method": "fed-raa", "next_client": "tifl", "concurrency": 3}),
        ("next_client", {"method": "fed-raa", "next_client": "nobody", "concurrency": 3}),
    ],
)
def test_invalid_selection_is_refused(field: str, fields: dict[str, Any], tmp_path: Path) -> None:
    with refuses(field):
        run(Experiment(**{**SMALL, **fields}, out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_partial_work_is_the_largest_number_of_steps_before_the_deadline(tmp_path: Path) -> None:
    """Without transfer and jitter a step takes 1/8 of a task, so tau = floor(D / (duration / 8)), at most 8."""
    fields = {**SMALL, "method": "fedavg", "compute": "lognormal:1", "duration_jitter": 0, "local_steps": 8}
    whole = run(Experiment(**fields, rounds=1, out=tmp_path / "whole"))
    durations = {line["client"]: float(line["cost"]) for line in whole.lines() if line["kind"] == "dispatch"}
    deadline = 0.7 * float(np.median(list(durations.values())))
    history = run(Experiment(**fields, rounds=1, deadline=deadline, late="partial", out=tmp_path / "cut"))
    flops = {line["client"]: float(line["flops"]) for line in whole.lines() if line["kind"] == "commit"}
    committed = {line["client"]: line for line in history.lines() if line["kind"] == "commit"}
    for line in history.lines():
        if line["kind"] == "dispatch":
            client = line["client"]
            steps = min(8, int(deadline / (durations[client] / 8) + 1e-9))
            assert line.get("cut_at", 8) == steps
            assert committed[client]["flops"] == pytest.approx(flops[client] * steps / 8, rel=0.03)


@pytest.mark.parametrize("participation", ["all", "bernoulli:0.5", "sample:3"])
def test_over_selection_without_other_clients_is_refused(participation: str) -> None:
    fields: dict[str, Any] = {"method": "fedavg", "clients": 3, "over_selection": 1.5}
    with refuses("over_selection", "participation", got=1.5):
        build_run(Experiment(**fields, participation=participation))
    build_run(Experiment(**fields, participation="sample:1"))


def test_over_selection_uses_the_first_updates(tmp_path: Path) -> None:
    """Of ceil(1.5 * 4) clients the server uses the four fastest. The others cost computation until the round ends."""
    fields = {**SMALL, "method": "fedavg", "compute": "lognormal:1", "duration_jitter": 0, "rounds": 1}
    history = run(Experiment(**fields, participation="sample:4", over_selection=1.5, out=tmp_path / "run"))
    lines = list(history.lines())
    costs = {line["client"]: float(line["cost"]) for line in lines if line["kind"] == "dispatch"}
    fastest = sorted(costs, key=costs.__getitem__)
    assert len(costs) == 6
    assert [line["client"] for line in lines if line["kind"] == "commit"] == fastest[:4]
    lost = {line["client"]: float(line["flops"]) for line in lines if line["kind"] == "lost"}
    assert lost.keys() == set(fastest[4:])
    end = costs[fastest[3]]
    whole = next(float(line["flops"]) for line in lines if line["kind"] == "commit")
    assert [lost[client] for client in lost] == pytest.approx([whole * end / costs[client] for client in lost])


def test_flops_of_lost_tasks_are_those_of_the_finished_training(tmp_path: Path) -> None:
    """All devices train for 1 unit. One still receives at the deadline, one trains, one sends."""
    devices = tmp_path / "devices.csv"
    devices.write_text("compute,downlink,uplink,latency\n1,inf,inf,0\n1,0.25,inf,0\n1,1,inf,0.25\n1,inf,0.5,0.5\n")
    fields = {**SMALL, "method": "fedavg", "clients": 4, "partition": "iid", "local_steps": None, "local_epochs": 5}
    fields |= {"compute": str(devices), "duration_jitter": 0, "rounds": 2, "deadline": 2.0}
    history = run(Experiment(**fields, out=tmp_path / "run"))
    whole = {line["client"]: float(line["flops"]) for line in history.lines() if line["kind"] == "commit"}
    lost = {line["client"]: float(line["flops"]) for line in history.lines() if line["kind"] == "lost"}
    assert whole.keys() == {0}
    # Shards differ by at most one sample.
    expected = {1: 0.0, 2: 0.75 * whole[0], 3: whole[0]}
    assert lost == pytest.approx(expected, rel=0.01)
    assert "consistent" in fedraa.replay(history.directory)


def test_replay_finds_a_wrong_reason_of_a_lost_task(tmp_path: Path) -> None:
    fields = {**SMALL, "method": "fedavg", "participation": "sample:4", "deadline": 0.05, "compute": "lognormal:1"}
    directory = run(Experiment(**fields, rounds=4, out=tmp_path / "run")).directory
    log = (directory / "events.jsonl").read_text()
    assert '"reason": "deadline"' in log or '"reason":"deadline"' in log
    changed = log.replace('"deadline"', '"count"', 1)
    (directory / "events.jsonl").write_text(changed)
    with pytest.raises(fedraa.Inconsistent, match="reason"):
        fedraa.replay(directory)
