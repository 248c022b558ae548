"""Runs with robust aggregators: a killed run resumes with the same bits, and its directory replays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equal_runs import SMALL, check_resume
from refusals import refuses

import fedraa
from fedraa import Experiment, run
from fedraa.client.trainer import Trainer
from fedraa.composition.registry import find_method
from fedraa.engine.build import build_run
from fedraa.errors import RunFailed
from fedraa.messages import Task, Update
from fedraa.rundir.history import History
from fedraa.server.async_rule import AsyncModel, ClientUpdate


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "aggregator": "median"},
        {"method": "heterofl", "aggregator": "trimmed-mean"},
        {"method": "fed-raa-sync", "aggregator": "multi-krum(attackers=1)"},
        {"method": "ra-fed", "aggregator": "krum(attackers=2)"},
        {"method": "fedcm", "aggregator": "bulyan"},
        {"method": "fedavg", "aggregator": "geometric-median"},
        {"method": "heterofl", "aggregator": "centred-clipping"},
        {"method": "fedavg", "aggregator": "norm-bound"},
        {"method": "fedavg", "aggregator": "fltrust(root=3)"},
    ],
    ids=lambda fields: f"{fields['method']}-{fields['aggregator']}",
)
def test_killed_rounds_resume_and_replay(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = check_resume({**SMALL, **fields, "rounds": 4}, tmp_path, kill_at=19)
    mean = run(Experiment(**SMALL, method=fields["method"], rounds=4, out=tmp_path / "mean"))
    assert mean.summary["model_sha256"] != whole.summary["model_sha256"]


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedbuff", "aggregator": "multi-krum(attackers=1)", "buffer_size": 5},
        {"method": "fadas", "aggregator": "centred-clipping", "buffer_size": 5},
        {"method": "fed-raa", "async_rule": "buffer(size=5, aggregator='median')"},
        {"method": "fed-raa", "async_rule": "buffer(size=8)", "aggregator": "krum(attackers=1)", "fragments": 2},
    ],
    ids=lambda fields: f"{fields['method']}-{fields.get('aggregator')}",
)
def test_killed_buffers_resume_and_replay(fields: dict[str, Any], tmp_path: Path) -> None:
    check_resume({**SMALL, **fields, "updates": 6}, tmp_path, kill_at=23)


def test_buffer_waits_for_enough_clients_and_averages_deltas_of_each_client() -> None:
    method = find_method("fedbuff").replace(buffer_size=3, aggregator="median", server_lr=0.5)
    model = AsyncModel(np.zeros(1, np.float32), 4, 1)
    rule = method.update.bind(model)
    results = []
    for client, delta in [(0, 1.0), (0, 3.0), (1, 9.0), (0, 5.0), (2, 4.0)]:
        sent, new = np.zeros(1, np.float32), np.full(1, delta, np.float32)
        update = ClientUpdate(client, 0, slice(None), new, sent, staleness=3, samples=1, loss=1.0)
        results.append(rule.apply_update(update, model).new_version)
    assert results == [False, False, False, False, True]
    # The polynomial weight of staleness 3 is 1 / sqrt(4). The votes are 3, 9 and 4.
    assert model.params.tolist() == [0.5 * 0.5 * 4.0]


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "aggregator": "krum(attackers=3)"},
        {"method": "fedavg", "aggregator": "multi-krum(attackers=2)", "participation": "sample:6"},
        {"method": "fedavg", "aggregator": "multi-krum(attackers=1, selected=8)"},
        {"method": "fedavg", "aggregator": "median", "participation": "bernoulli:0.25"},
        {"method": "fedavg", "aggregator": "krum", "participation": "uniform:3"},
        {"method": "feddyn", "aggregator": "median"},
        {"method": "fedbuff", "aggregator": "bulyan(attackers=1)", "buffer_size": 6},
        {"method": "fedbuff", "aggregator": "fltrust"},
        {"method": "fedbuff", "aggregator": "covered"},
        {"method": "fedasync", "aggregator": "median"},
        {"method": "fedavg", "aggregator": "fltrust", "participation": "sample:6"},
        {"method": "fedavg", "aggregator": "fltrust(root=8)"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_combinations_without_protection_are_refused(fields: dict[str, Any]) -> None:
    with refuses("aggregator"):
        build_run(Experiment(**SMALL, **fields))


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"method": "fedavg", "participation": "sample:2"}, {"participation": "sample:3"}),
        ({"method": "fedavg", "participation": "poisson:0.25"}, {"participation": "poisson:0.375"}),
        ({"method": "fedbuff", "buffer_size": 2}, {"buffer_size": 3}),
        ({"method": "fedavg", "clients": 2}, {"clients": 3}),
    ],
    ids=lambda fields: "-".join(fields),
)
def test_error_for_too_few_deltas_names_the_option_that_gives_more(
    fields: dict[str, Any], remedy: dict[str, Any]
) -> None:
    (option,) = remedy
    with refuses("aggregator", option.replace("_", "-")):
        build_run(Experiment(**SMALL | fields, aggregator="median"))
    build_run(Experiment(**SMALL | fields | remedy, aggregator="median"))


@pytest.mark.parametrize("name", ["buffer_size", "update.size"])
def test_robust_buffer_larger_than_the_number_of_clients_is_refused(name: str) -> None:
    def build(size: int) -> None:
        sized = {"buffer_size": size} if name == "buffer_size" else {"override": {name: size}}
        build_run(Experiment(**SMALL, method="fedbuff", aggregator="median", **sized))

    build(SMALL["clients"])
    with refuses("buffer_size", str(SMALL["clients"]), got=SMALL["clients"] + 1):
        build(SMALL["clients"] + 1)


@pytest.mark.parametrize(
    "aggregator", ["median", "trimmed-mean", "krum", "multi-krum", "bulyan", "centred-clipping", "fltrust"]
)
def test_weights_are_refused_if_each_client_has_one_vote(aggregator: str) -> None:
    with refuses("weights", got="samples"):
        build_run(Experiment(**SMALL, method="fedavg", aggregator=aggregator, weights="samples"))
    build_run(Experiment(**SMALL, method="fedavg", aggregator="geometric-median", weights="samples"))


def test_failed_client_does_not_end_a_run_of_multi_krum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a round has one client fewer than `selected` + f, the aggregator takes the median of each coordinate."""
    train = Trainer.train

    def fail_once(self: Trainer, task: Task, *data: Any) -> Update:
        if task.client == 2 and task.turn == 1:
            raise RuntimeError("the battery is empty")
        return train(self, task, *data)

    monkeypatch.setattr(Trainer, "train", fail_once)
    fields = {"method": "fedavg", "aggregator": "multi-krum(attackers=1, selected=7)", "rounds": 3}
    history = run(Experiment(**SMALL, **fields, client_retries=0, out=tmp_path / "run"))
    rounds = [line for line in history.lines() if line["kind"] == "round"]
    assert [line["clients"] for line in rounds] == [8, 7, 7]
    assert [line["unprotected"] > 0 for line in rounds] == [False, True, True]


def test_coordinates_without_protection_are_logged(tmp_path: Path) -> None:
    history = run(Experiment(**SMALL, method="fed-raa-sync", aggregator="krum", rounds=2, out=tmp_path / "run"))
    rounds = [line for line in history.lines() if line["kind"] == "round"]
    assert all(line["unprotected"] > 0 for line in rounds)


def test_quarantine_of_the_root_of_fltrust_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the root the model would keep its values for the rest of the run."""
    train = Trainer.train

    def fail_later(self: Trainer, task: Task, *data: Any) -> Update:
        if task.client == 2 and task.turn >= 1:
            raise RuntimeError("the battery is empty")
        return train(self, task, *data)

    monkeypatch.setattr(Trainer, "train", fail_later)
    fields = {"method": "fedavg", "aggregator": "fltrust(root=2)", "rounds": 4}
    with pytest.raises(RunFailed) as caught:
        run(Experiment(**SMALL, **fields, out=tmp_path / "run"))
    assert caught.value.field == "client 2"
    last = History(tmp_path / "run").lines()[-1]
    assert (last["kind"], last["client"], last["action"]) == ("drop", 2, "stop")
    assert "consistent" in fedraa.replay(tmp_path / "run")
    # The first failure is retried, and its round does not move the model.
    rounds = [line for line in History(tmp_path / "run").lines() if line["kind"] == "round"]
    assert [line["clients"] for line in rounds] == [8, 7]
    assert [line["unprotected"] > 0 for line in rounds] == [False, True]


def test_a_deadline_that_the_root_of_fltrust_may_miss_is_refused() -> None:
    with refuses("deadline"):
        build_run(Experiment(**SMALL, method="fedavg", aggregator="fltrust", deadline=1.0, rounds=2))


@pytest.mark.parametrize("fields", [{}, {"method": "fedavgm"}, {"method": "heterofl", "compress": "sign"}])
def test_majority_vote_with_the_default_server_lr_is_refused(fields: dict[str, Any]) -> None:
    fields = {"method": "fedavg", "aggregator": "majority", **fields}
    with refuses("server_lr", got=1.0):
        build_run(Experiment(**SMALL, **fields, rounds=2))
    build_run(Experiment(**SMALL, **fields, server_lr=0.001, rounds=2))
    build_run(Experiment(**SMALL, **{**fields, "method": "fedadam"}, rounds=2))
