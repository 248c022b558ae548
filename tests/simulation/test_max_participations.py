"""A limit on the tasks of each client: the run ends when all clients have reached it, resumes exactly, and replays."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from equal_runs import check_resume, lines
from refusals import refuses

import fedraa
from fedraa import Experiment, resume, run
from fedraa.client.trainer import Trainer
from fedraa.engine.build import build_run
from fedraa.messages import Task, Update
from fedraa.rundir.history import History

SMALL: dict[str, Any] = {
    "engine": "local",
    "hidden": (8,),
    "clients": 6,
    "local_steps": 2,
    "checkpoint_every": 2,
    "seed": 5,
    "quiet": True,
    "compute": "lognormal:1",
    "max_participations": 3,
}


def count_kind(history: History, kind: str) -> Counter[int]:
    """Return the number of lines of this kind by client."""
    return Counter(int(line["client"]) for line in history.lines() if line["kind"] == kind)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "rounds": 50},
        {"method": "fedavg", "participation": "uniform:4", "rounds": 50},
        {"method": "heterofl", "participation": "oort:2", "over_selection": 1.5, "rounds": 50},
        {"method": "fednova", "deadline": 0.2, "late": "partial", "local_steps": 8, "rounds": 50},
        {"method": "fed-raa", "updates": 500},
        {"method": "fedbuff", "buffer_size": 4, "concurrency": 2, "updates": 500},
        {"method": "fed-raa", "concurrency": 3, "next_client": "oort", "updates": 500},
        {"method": "heterofl-async", "updates": 500},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_run_ends_when_every_client_has_reached_the_limit(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = check_resume(SMALL | fields, tmp_path, kill_at=7)
    assert whole.summary["reason"] == "participations"
    assert count_kind(whole, "dispatch") == dict.fromkeys(range(6), 3)
    with refuses("run"):
        resume(tmp_path / "whole", **{name: 1000 for name in ("rounds", "updates") if name in fields})


@pytest.mark.parametrize("fields", [{"method": "fedavg", "rounds": 50}, {"method": "fed-raa", "updates": 500}], ids=str)
def test_failed_tasks_count_as_participations(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last task of client 2 fails, so that it is not retried."""
    train = Trainer.train

    def fail_last(self: Trainer, task: Task, *data: Any) -> Update:
        if task.client == 2 and task.turn == 2:
            raise RuntimeError("the battery is empty")
        return train(self, task, *data)

    monkeypatch.setattr(Trainer, "train", fail_last)
    history = run(Experiment(**SMALL, **fields, out=tmp_path / "run"))
    assert history.summary["reason"] == "participations"
    assert count_kind(history, "dispatch") == dict.fromkeys(range(6), 3)
    assert count_kind(history, "commit")[2] == 2
    assert "consistent" in fedraa.replay(history.directory)


@pytest.mark.parametrize("fails", [False, True])
def test_robust_buffer_does_not_wait_for_clients_without_tasks(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients 1 to 5 are done long before client 0. Then each update of client 0 is a step."""
    train = Trainer.train

    def fail_last(self: Trainer, task: Task, *data: Any) -> Update:
        if fails and task.client == 1 and task.turn == 2:
            raise RuntimeError("the battery is empty")
        return train(self, task, *data)

    monkeypatch.setattr(Trainer, "train", fail_last)
    compute = tmp_path / "devices.csv"
    compute.write_text("compute\n" + "1\n" + "100\n" * 5)
    fields = SMALL | {"method": "fedbuff", "buffer_size": 6, "aggregator": "median", "updates": 500}
    history = run(Experiment(**fields | {"compute": str(compute), "partition": "iid"}, out=tmp_path / "run"))
    last = [line for line in history.lines() if line["kind"] == "commit"][-3:]
    assert [line["client"] for line in last] == [0, 0, 0]
    steps = history.summary["steps"]
    assert [line["version"] for line in last] == [steps - 2, steps - 1, steps]
    assert "consistent" in fedraa.replay(history.directory)


def test_limit_above_the_tasks_of_a_run_changes_nothing(tmp_path: Path) -> None:
    fields = {**SMALL, "method": "fedavg", "rounds": 3}
    bounded = run(Experiment(**fields | {"max_participations": 4}, out=tmp_path / "bounded"))
    free = run(Experiment(**fields | {"max_participations": None}, out=tmp_path / "free"))
    assert bounded.summary["reason"] == "steps"
    assert lines(bounded.directory) == lines(free.directory)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "ace"},
        {"method": "fedavg", "weights": "uniform", "privacy": "central(noise=1.0)", "participation": "poisson:0.5"},
    ],
    ids=lambda fields: str(fields["method"]),
)
def test_limit_that_breaks_a_method_or_its_privacy_is_refused(fields: dict[str, Any]) -> None:
    with refuses("max_participations"):
        build_run(Experiment(**SMALL, **fields))


def test_limit_of_updates_before_the_time_limit_ends_the_run_at_its_last_update(tmp_path: Path) -> None:
    """No client waits for a task after the first update, and the next update is due after the time limit."""
    fields = SMALL | {"method": "fed-raa", "max_participations": 1}
    whole = run(**fields, updates=2, out=tmp_path / "whole")
    first, second = [float(line["t"]) for line in whole.lines() if line["kind"] == "commit"]
    history = run(**fields, time=(first + second) / 2, updates=1, out=tmp_path / "run")
    assert (history.summary["steps"], history.summary["time"]) == (1, first)
    assert "consistent (" in fedraa.replay(history.directory)
