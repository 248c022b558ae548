"""One bad client does not end a run: the model equals the model of a run without the client.

In the second run, a custom Participation of a method in rounds never draws the client. In an asynchronous method the
client is never available.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equal_runs import lines, same_run
from needed_models import needed_model
from refusals import refuses

import fedraa as fl
from benchmarks.system.killing import KillAt, Killed
from benchmarks.system.spoiling import CAUSES, spoil_update
from fedraa.callbacks import Event
from fedraa.client.batched_trainer import BatchedTrainer
from fedraa.client.trainer import Trainer
from fedraa.composition.registry import list_methods
from fedraa.errors import RunFailed, RunWarning
from fedraa.messages import Task, Update
from fedraa.rundir.status import read_status
from fedraa.rundir.summary import NO_STEP
from fedraa.server.schedule import Rounds
from fedraa.server.selection import is_routing
from fedraa.testing.samples import make_vectors

METHODS = list_methods()

CLIENTS, BAD = 4, 2
SMALL: dict[str, Any] = {"engine": "local", "clients": CLIENTS, "hidden": (8,), "local_steps": 2, "quiet": True}
ROUNDS = [name for name, method in METHODS.items() if not method.asynchronous]
WAITING = [
    name
    for name, method in METHODS.items()
    if method.update.needs_all_clients or is_routing(getattr(method.schedule, "next_client", "uniform"))
]
IDLE = [name for name, method in METHODS.items() if method.asynchronous and name not in WAITING]
QUICK = (
    *("fedavg", "scaffold", "fedcm", "mimelite", "fedadam", "fedrobust", "prunefl", "splitfed", "ist"),
    *("heterofl", "ram-fed", "subdismo", "shuffled", "fed-raa-sync"),
)
# In these methods the submodel of a client depends on the other clients of the round.
BY_COHORT = ("ist", "fed-raa-sync")


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Spoil the updates of the tasks for which `which` returns True."""

    def of(kind: str, which: Callable[[Task], bool] = lambda task: task.client == BAD) -> None:
        train = Trainer.train

        def trained(self: Trainer, task: Task, *rest: Any) -> Update:
            update = train(self, task, *rest)
            return spoil_update(update, kind) if which(task) else update

        monkeypatch.setattr(Trainer, "train", trained)

    return of


def execute(method: str, out: Path, **flags: Any) -> fl.History:
    buffered = {"buffer_size": 3} if method == "fedbuff" else {}
    # A round needs more than one client.
    together = {"submodel": "adaptive-pruning(initial=0)"} if method == "prunefl" else {}
    limit = {"updates": 9 if buffered else 25} if METHODS[method].asynchronous else {"rounds": 5}
    history: fl.History = fl.run(
        **SMALL
        | needed_model(method)
        | buffered
        | together
        | limit
        | {"method": method, "dataset": make_vectors(), "out": out}
        | flags
    )
    return history


class Others(fl.Participation):
    """A participation of all clients except the bad one."""

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> list[int]:
        return [client for client in range(clients) if client != BAD]


class Stripes(fl.Partitioner):
    """A partition in which client n has the rows n, n + 4, n + 8, and so on."""

    def assign(self, labels: Any, clients: int, rng: np.random.Generator) -> Any:
        return [np.arange(client, len(labels), clients) for client in range(clients)]


def availability_without_bad_client(folder: Path) -> Path:
    """Return an availability in which the bad client is never available."""
    path = folder / "away.csv"
    spans = [f"{n},{1e9 if n == BAD else 0},{2e9 if n == BAD else 1e8}" for n in range(CLIENTS)]
    path.write_text("client,start,end\n" + "\n".join(spans) + "\n")
    return path


def drops(history: fl.History) -> list[dict[str, Any]]:
    return [line for line in history.lines() if line["kind"] == "drop"]


def expect_quarantined(history: fl.History, kind: str, *clients: int, retries: int = 1) -> None:
    """Assert that exactly these clients were quarantined after the retries, in every place that shows it."""
    for client in clients:
        of = [line for line in drops(history) if line["client"] == client]
        assert [line["action"] for line in of] == ["retry"] * retries + ["quarantined"]
        given = [line["seq"] for line in history.lines() if line["kind"] == "dispatch" and line["client"] == client]
        assert max(given) < of[-1]["seq"]
    assert {line["client"] for line in drops(history)} == set(clients)
    assert all(re.fullmatch(CAUSES[kind], line["error"]) for line in drops(history))
    found = history.summary["quarantined"]
    assert sorted(entry["client"] for entry in found) == sorted(clients)  # type: ignore[attr-defined]
    assert history.summary["dropped"] == len(drops(history))
    assert sorted(entry["client"] for entry in read_status(history.directory).quarantined) == sorted(clients)
    assert "consistent" in fl.replay(history.directory)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ROUNDS]
)
def test_bad_client_in_rounds_leaves_the_model_of_a_run_without_it(
    method: str, spoil: Callable[..., None], tmp_path: Path
) -> None:
    kind = list(CAUSES)[ROUNDS.index(method) % len(CAUSES)]
    undisturbed = None if method in BY_COHORT else execute(method, tmp_path / "others", participation=Others())
    spoil(kind)
    history = execute(method, tmp_path / "run")
    expect_quarantined(history, kind, BAD)
    rounds = [line for line in history.lines() if line["kind"] == "round"]
    assert [line["clients"] for line in rounds] == [CLIENTS - 1] * 5
    if undisturbed is not None:
        assert history.summary["model_sha256"] == undisturbed.summary["model_sha256"]


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=pytest.mark.slow if METHODS[name].variant_of else ()) for name in IDLE]
)
@pytest.mark.parametrize("kind", ["not finite", pytest.param("raises", marks=pytest.mark.slow)])
def test_bad_client_in_asynchronous_runs_leaves_the_model_of_a_run_without_it(
    method: str, kind: str, spoil: Callable[..., None], tmp_path: Path
) -> None:
    # The task of an unavailable client never ends, and least-sent would count this task.
    flags = {"scheduler": "gre-raa"} if METHODS[method].schedule.scheduler == "least-sent" else {}
    undisturbed = execute(method, tmp_path / "away", availability=availability_without_bad_client(tmp_path), **flags)
    spoil(kind)
    history = execute(method, tmp_path / "run", **flags)
    expect_quarantined(history, kind, BAD)
    assert history.summary["model_sha256"] == undisturbed.summary["model_sha256"]


@pytest.mark.parametrize("method", WAITING)
def test_method_that_waits_for_all_clients_continues_without_a_bad_client(
    method: str, spoil: Callable[..., None], tmp_path: Path
) -> None:
    spoil("not finite")
    history = execute(method, tmp_path / "run")
    expect_quarantined(history, "not finite", BAD)
    assert history.summary["steps"] == 25


@pytest.mark.parametrize("method", ["fed-raa", "fedbuff", "scaffold", "ram-fed", "fed-raa-sync"])
def test_killed_run_with_a_bad_client_resumes_to_the_same_run(
    method: str, spoil: Callable[..., None], tmp_path: Path
) -> None:
    spoil("not finite")
    flags: dict[str, Any] = {"checkpoint_every": 2, "max_update_norm": "auto"}
    if METHODS[method].schedule == Rounds():
        flags["participation"] = "sample:3"
    undisturbed = execute(method, tmp_path / "undisturbed", **flags)
    for commit in (3, 8):
        directory = tmp_path / str(commit)
        with pytest.raises(Killed):
            execute(method, directory, callbacks=[KillAt(commit)], **flags)
        fl.resume(directory, dataset=make_vectors())
        same_run(directory, undisturbed.directory)
        fl.replay(directory)


def test_run_stopped_between_two_attempts_of_a_task_resumes_to_the_same_run(
    spoil: Callable[..., None], tmp_path: Path
) -> None:
    class Stops(fl.Callback):
        def on_fault(self, event: Event) -> None:
            raise ArithmeticError

    spoil("not finite")
    undisturbed = execute("fed-raa", tmp_path / "undisturbed")
    with pytest.raises(ArithmeticError):
        execute("fed-raa", tmp_path / "run", callbacks=[Stops()])
    fl.resume(tmp_path / "run", dataset=make_vectors())
    same_run(tmp_path / "run", undisturbed.directory)


def test_client_that_fails_once_takes_part_again(spoil: Callable[..., None], tmp_path: Path) -> None:
    spoil("not finite", lambda task: task.client == BAD and task.step == 2)
    history = execute("scaffold", tmp_path / "run")
    assert [(line["client"], line["action"]) for line in drops(history)] == [(BAD, "retry")]
    assert [line["clients"] for line in history.lines() if line["kind"] == "round"] == [4, 4, 3, 4, 4]
    assert history.summary["quarantined"] == []
    fl.replay(history.directory)


def test_client_that_fails_every_second_task_is_never_quarantined(spoil: Callable[..., None], tmp_path: Path) -> None:
    spoil("1e30", lambda task: task.client == BAD and task.turn % 2 == 0)
    history = execute("fed-raa", tmp_path / "run")
    assert len(drops(history)) > 1
    assert history.summary["quarantined"] == []


@pytest.mark.parametrize("retries", [0, 3])
def test_bad_client_is_retried_client_retries_times(retries: int, spoil: Callable[..., None], tmp_path: Path) -> None:
    spoil("not finite")
    history = execute("fedasync", tmp_path / "run", client_retries=retries)
    expect_quarantined(history, "not finite", BAD, retries=retries)


@pytest.mark.parametrize(
    "flags",
    [
        {"method": "heterofl", "participation": "sample:2", "rounds": 8, "compress": "8bit", "dropout": 0.3},
        {"method": "fedavgm", "participation": "bernoulli:0.5", "rounds": 8, "compress": "topk:0.2"},
        {"method": "fed-raa", "async_rule": "buffer(size=2)", "updates": 9, "dropout": 0.2, "max_update_norm": "auto"},
        {"method": "mofedsam", "rounds": 4, "max_update_norm": "auto"},
    ],
)
def test_quarantine_works_with_other_options(flags: dict[str, Any], spoil: Callable[..., None], tmp_path: Path) -> None:
    spoil("not finite")
    history = fl.run(**SMALL | flags, dataset=make_vectors(), out=tmp_path / "run")
    expect_quarantined(history, "not finite", BAD)
    assert np.isfinite(history.evals["loss"]).all()


def test_if_training_diverges_for_all_clients_the_error_names_remedies(tmp_path: Path) -> None:
    with refuses("clients", "all 4", "not finite", "--lr", "--clip", error=RunFailed):
        execute("fedavg", tmp_path / "run", lr=1e30)


@pytest.mark.parametrize("method", ["fed-raa", "fedavg", "ram-fed", "fed-raa-sync"])
def test_run_in_which_every_client_fails_ends_with_the_last_error(
    method: str, spoil: Callable[..., None], tmp_path: Path
) -> None:
    spoil("raises", lambda task: True)
    with refuses(
        "clients", "all 4", "2 times", "client ", "task ", "ZeroDivisionError", "no such thing", error=RunFailed
    ):
        execute(method, tmp_path / "run")
    assert read_status(tmp_path / "run").state.startswith("failed (clients: ")
    assert sorted(entry["client"] for entry in read_status(tmp_path / "run").quarantined) == [0, 1, 2, 3]
    assert "consistent so far" in fl.replay(tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "flags", "clients"),
    [
        ("fedavg", {"rounds": 1}, 4),
        ("fedavg", {"rounds": 3, "client_retries": 5}, 4),
        ("fedavg", {"rounds": 2, "participation": "sample:1"}, 2),
        ("fedasync", {"updates": None, "time": 0.5, "client_retries": 1000}, 4),
    ],
)
def test_run_that_ends_before_any_client_succeeds_fails_with_the_last_error(
    method: str, flags: dict[str, Any], clients: int, spoil: Callable[..., None], tmp_path: Path
) -> None:
    spoil("raises", lambda task: True)
    with refuses("clients", f"{clients} clients failed", "task ", "ZeroDivisionError", error=RunFailed):
        execute(method, tmp_path / "run", **flags)
    assert read_status(tmp_path / "run").state.startswith("failed (clients: ")
    assert "consistent so far" in fl.replay(tmp_path / "run")


def test_run_in_which_only_some_clients_had_time_to_fail_ends_with_a_warning(
    spoil: Callable[..., None], tmp_path: Path
) -> None:
    """The task of the slow client is still in flight at the end."""
    spoil("raises", lambda task: True)
    devices = tmp_path / "devices.csv"
    devices.write_text("compute\n1\n1\n1\n0.001\n")
    flags = {"compute": devices, "updates": None, "time": 0.5, "client_retries": 1000}
    with pytest.warns(RunWarning, match=NO_STEP):
        history = execute("fedasync", tmp_path / "run", **flags)
    assert {line["client"] for line in drops(history)} == {0, 1, 2}


def test_error_of_the_only_client_counts_one_client(spoil: Callable[..., None], tmp_path: Path) -> None:
    spoil("raises", lambda task: True)
    for retries, text in ((0, "all 1 client failed 1 time "), (1, "every task of 1 client failed")):
        with refuses("clients", text, error=RunFailed):
            execute("fedavg", tmp_path / str(retries), clients=1, rounds=1, client_retries=retries)


def test_failed_run_resumes_after_the_clients_are_repaired(
    spoil: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spoil("not finite", lambda task: task.step >= 3)
    with refuses("clients", error=RunFailed):
        execute("fedavg", tmp_path / "run", checkpoint_every=1)
    monkeypatch.undo()
    history = fl.resume(tmp_path / "run", dataset=make_vectors())
    assert [line["clients"] for line in history.lines() if line["kind"] == "round"] == [4, 4, 4, 0, 4]
    assert history.summary["quarantined"] == []
    fl.replay(history.directory)


def test_round_without_updates_does_not_change_the_model(spoil: Callable[..., None], tmp_path: Path) -> None:
    spoil("not finite", lambda task: task.step == 1)
    for method in ("ram-fed", "mofedsam", "fedadam", "heterofl"):
        history = execute(method, tmp_path / method)
        assert [line["clients"] for line in history.lines() if line["kind"] == "round"] == [4, 0, 4, 4, 4]
        losses = history.evals["loss"].tolist()
        assert losses[2] == losses[1]
        assert len(set(losses)) == 5
        fl.replay(history.directory)


def test_on_bad_client_stop_ends_the_run_and_names_the_client(spoil: Callable[..., None], tmp_path: Path) -> None:
    spoil("not finite")
    with refuses("client 2", "2 times", "task ", "not finite", "--on-bad-client skip", error=RunFailed):
        execute("fedavg", tmp_path / "run", on_bad_client="stop")
    assert [line["action"] for line in drops(fl.History(tmp_path / "run"))] == ["retry", "stop"]
    fl.replay(tmp_path / "run")


def test_run_ends_if_the_first_50_clients_all_fail(spoil: Callable[..., None], tmp_path: Path) -> None:
    spoil("raises", lambda task: True)
    with refuses("clients", "first 50", "client ", error=RunFailed):
        execute("fedavg", tmp_path / "run", clients=60, duration_jitter=0.0, compute="1:1.0")


def test_gradient_transform_that_exits_the_process_is_refused(tmp_path: Path) -> None:
    class Leaves(fl.GradientTransform):
        def apply(self, g: Any, context: Any) -> None:
            sys.exit(3)

    with refuses("gradient_transforms", "Leaves", "SystemExit: 3"):
        execute("fedavg", tmp_path / "run", gradient_transforms=(Leaves(),))


@pytest.mark.parametrize("method", ["fed-raa", "fedavg"])
def test_bad_client_does_not_affect_the_others_in_a_vmap_batch(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    others = (
        {"availability": availability_without_bad_client(tmp_path)}
        if method == "fed-raa"
        else {"participation": Others()}
    )
    undisturbed = execute(method, tmp_path / "others", vmap_batch=3, **others)
    train = BatchedTrainer.train_all

    def trained(self: BatchedTrainer, work: Any) -> list[Update]:
        if any(one.task.client == BAD for one in work):
            raise ArithmeticError("one of you")
        return train(self, work)

    monkeypatch.setattr(BatchedTrainer, "train_all", trained)
    history = execute(method, tmp_path / "run", vmap_batch=3)
    assert {(line["client"], line["error"]) for line in drops(history)} == {(BAD, "ArithmeticError: one of you")}
    assert [entry["client"] for entry in history.summary["quarantined"]] == [BAD]  # type: ignore[attr-defined]
    assert history.summary["model_sha256"] == undisturbed.summary["model_sha256"]


@pytest.mark.parametrize("method", ["heterofl", "mofedsam"])
def test_extreme_inputs_do_not_affect_other_clients_in_a_vmap_batch(method: str, tmp_path: Path) -> None:
    """In a vmap batch each client's gradient has its own norm, so values that are not finite stay with their client."""
    dataset = make_vectors()
    flags = {"vmap_batch": 4, "partition": Stripes(), "dataset": dataset, "max_update_norm": 1e3, "standardise": False}
    undisturbed = execute(method, tmp_path / "others", participation=Others(), **flags)
    rows = dataset.x_train.copy()
    rows[BAD::CLIENTS] = np.where(np.arange(rows.shape[1]) % 2, 3e38, -3e38)
    history = execute(method, tmp_path / "run", **flags | {"dataset": replace(dataset, x_train=rows)})
    assert [entry["client"] for entry in history.summary["quarantined"]] == [BAD]  # type: ignore[attr-defined]
    assert history.summary["model_sha256"] == undisturbed.summary["model_sha256"]


def test_failed_task_does_not_change_the_numbers_of_later_tasks(spoil: Callable[..., None], tmp_path: Path) -> None:
    """The first task of a client fails and the second does not. The numbers of the dispatched tasks do not change."""
    plain = execute("fedavg", tmp_path / "plain")
    spoil("loss", lambda task: task.client == BAD and task.turn == 0)
    history = execute("fedavg", tmp_path / "run")
    one, other = ([line for line in lines(each.directory) if line["kind"] == "dispatch"] for each in (plain, history))
    assert [line["task"] for line in one] == [line["task"] for line in other]
