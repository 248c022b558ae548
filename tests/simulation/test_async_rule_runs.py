"""Runs of asynchronous rules that ignore updates, wait, or send a version again. No task is trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from refusals import refuses
from test_async_invariants import CLIENTS, simulate

import fedraa as fl
from fedraa import Experiment
from fedraa.cli.plan import server_bytes
from fedraa.cli.plan_outlook import first_ledger, make_task_cost
from fedraa.composition.registry import list_methods
from fedraa.devices.availability import Timing
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_planner
from fedraa.engine.forecast import dry_run
from fedraa.engine.memory_check import Need
from fedraa.errors import Inconsistent
from fedraa.replay.replay import replay
from fedraa.server.schedule import AsyncSchedule
from fedraa.settings.resolve import resolve_method

METHODS = list_methods()

UNEVEN = {"compute": "lognormal:1", "seed": 3}


def lines_of_kind(history: fl.History, kind: str) -> pd.DataFrame:
    events = history.events
    return events[events["kind"] == kind].dropna(axis=1, how="all").reset_index(drop=True)


def test_ringmaster_applies_only_updates_below_its_delay_limit(tmp_path: Path) -> None:
    history = simulate("ringmaster", tmp_path, 200, override={"update.delay_limit": 4}, **UNEVEN)
    commits = lines_of_kind(history, "commit")
    ignored = commits["weight"] == 0
    assert ((commits["staleness"] >= 4) == ignored).all()
    assert (~ignored).sum() == commits["version"].iloc[-1] == 200
    assert len(commits) == history.summary["tasks"] > 200
    assert (commits["bytes_up"] > 0).all()
    assert "consistent" in replay(tmp_path)


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_ringleader_makes_one_step_per_client_in_a_round(clients: int, tmp_path: Path) -> None:
    rounds = 30
    history = simulate("ringleader", tmp_path, rounds * clients, **UNEVEN | {"clients": clients})
    commits, sent = lines_of_kind(history, "commit"), lines_of_kind(history, "dispatch")
    steps = commits[commits["version"].diff().fillna(commits["version"]) > 0]
    # There are N steps, one for each client.
    for number in range(rounds):
        assert sorted(steps["client"][number * clients : (number + 1) * clients]) == [*range(clients)]
    assert commits["staleness"].max() <= 2 * clients - 2
    assert (commits["weight"] > 0).all()
    # A task that is trained again has the same version, and no download. Each client gets one new model per round.
    again = sent["bytes_down"] == 0
    assert again.sum() == len(commits) - len(steps)
    for _, tasks in sent.groupby("client"):
        held = tasks["bytes_down"] == 0
        assert (tasks["version"].diff()[held] == 0).all()
        assert len(tasks[~held]) <= rounds + 1
    assert "consistent" in replay(tmp_path)


def test_repeated_version_costs_no_download(tmp_path: Path) -> None:
    """The cost is one unit of computation at speed 1 and the upload, without the download."""
    fleet = tmp_path / "fleet.csv"
    fleet.write_text("compute,downlink,uplink\n" + "1,4,2\n" * CLIENTS)
    sent = lines_of_kind(simulate("ringleader", tmp_path / "run", 40, compute=str(fleet)), "dispatch")
    again = sent["bytes_down"] == 0
    # A cost of 1 is five epochs of the full model on an average shard.
    epochs = 5 / 5
    assert sent["cost"][~again].unique() == pytest.approx([epochs + 1 / 4 + 1 / 2])
    assert sent["cost"][again].unique() == pytest.approx([epochs + 1 / 2])


def test_replay_refuses_a_download_of_a_repeated_version(tmp_path: Path) -> None:
    simulate("ringleader", tmp_path, 30, **UNEVEN)
    path = tmp_path / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    where = next(number for number, line in enumerate(lines) if '"bytes_down":0' in line)
    lines[where] = lines[where].replace('"bytes_down":0', '"bytes_down":400')
    path.write_text("".join(lines))
    with pytest.raises(Inconsistent, match=r"bytes_down.*400"):
        replay(tmp_path)


def test_replay_refuses_a_weight_of_an_ignored_update(tmp_path: Path) -> None:
    simulate("ringmaster", tmp_path, 60, override={"update.delay_limit": 3}, **UNEVEN)
    path = tmp_path / "events.jsonl"
    path.write_text(path.read_text().replace('"weight":0.0', '"weight":1.0', 1))
    with pytest.raises(Inconsistent, match=r"weight.*1\.0"):
        replay(tmp_path)


def test_ace_waits_for_one_update_of_every_client(tmp_path: Path) -> None:
    commits = lines_of_kind(simulate("ace", tmp_path, 100, **UNEVEN), "commit")
    first = int(np.flatnonzero(commits["version"] == 1)[0])
    assert set(commits["client"][: first + 1]) == {*range(CLIENTS)} > set(commits["client"][:first])
    assert (commits["version"][first:].diff().dropna() == 1).all()
    assert "consistent" in replay(tmp_path)


@pytest.mark.parametrize("method", ["ringleader", "ringmaster", "ace", "ca2fl", "area", "mr-asyncfl", "heloco"])
def test_plan_predicts_the_run(method: str, tmp_path: Path) -> None:
    commits = lines_of_kind(simulate(method, tmp_path / "run", 60, **UNEVEN), "commit")
    flags: dict[str, Any] = {"clients": CLIENTS, "hidden": (100,), "updates": 60, "engine": "local", **UNEVEN}
    x, y = np.random.default_rng(0).normal(size=(1000, 10)).astype(np.float32), np.arange(1000) % 2
    spec = build_run(Experiment(method=method, **flags), dataset=fl.Dataset("even", x, y, x[:20], y[:20], 2))
    planner = make_planner(spec)
    update: Any = spec.method.update
    cost = make_task_cost(spec, np.arange(CLIENTS))
    dry = dry_run(first_ledger(spec, planner), update, Timing(3, 0.1), cost, steps=60)
    assert dry.time == pytest.approx(commits["t"].iloc[-1], rel=1e-12)
    assert (dry.steps, sum(dry.tasks), dry.staleness_max) == (60, len(commits), commits["staleness"].max())
    size = spec.params.nbytes
    tables = {"ringleader": 2, "ringmaster": 0, "ace": 1, "ca2fl": 1, "area": 1, "mr-asyncfl": 1, "heloco": 0}[method]
    assert server_bytes(spec) >= size * (1 + tables * CLIENTS + 2 * CLIENTS)
    assert server_bytes(spec) < size * (1 + (tables + 2) * CLIENTS) + 15 * size + size * CLIENTS * (method == "ca2fl")


@pytest.mark.parametrize("method", ["ringleader", "ace", "generalized-asyncsgd"])
def test_method_that_waits_for_all_clients_refuses_clients_that_leave(method: str, tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("client,start,end\n0,0,1\n")
    flags: dict[str, Any] = {"method": method, "engine": "local", "availability": there, "updates": 3}
    with refuses("availability", method, "--availability-period"):
        build_run(Experiment(**flags))
    build_run(Experiment(**flags, availability_period=2))
    # The trace is as long as the run.
    build_run(Experiment(**flags, time=1.0))
    with refuses("availability", method):
        build_run(Experiment(**flags, time=1.1))


def test_robust_buffer_refuses_a_trace_after_which_too_few_clients_remain(tmp_path: Path) -> None:
    """Of 5 clients, 2 leave. Buffers of 3 different clients still become full, and buffers of 4 do not."""
    there = tmp_path / "there.csv"
    there.write_text("client,start,end\n0,0,1\n3,0,1\n")
    flags: dict[str, Any] = {"method": "fedbuff", "clients": 5, "engine": "local", "availability": there, "updates": 3}
    build_run(Experiment(**flags, aggregator="median", buffer_size=3))
    build_run(Experiment(**flags, buffer_size=4))
    with refuses("availability", "4 different clients", "--availability-period"):
        build_run(Experiment(**flags, aggregator="median", buffer_size=4))


def test_buffer_that_all_updates_together_do_not_fill_is_refused() -> None:
    flags: dict[str, Any] = {"method": "fedbuff", "clients": 3, "engine": "local", "max_participations": 2}
    build_run(Experiment(**flags, buffer_size=6))
    # A robust buffer of 10, the default, is full with one update of each client.
    build_run(Experiment(**flags, aggregator="median"))
    with refuses("max_participations", "7", "--buffer-size", got=2):
        build_run(Experiment(**flags, buffer_size=7))


class TrainTwice(fl.AsyncRule):
    """A rule that lets clients train every version twice. The first update is held and applied with the second."""

    def start(self, model: Any) -> None:
        self.first: dict[str, Any] = {}

    def apply_update(self, update: Any, model: Any) -> fl.ApplyResult:
        first = self.first.pop(str(update.client), None)
        if first is None:
            self.first[str(update.client)] = update.delta
            return fl.ApplyResult(0.2, False, keep_task=True)
        model.params[update.where] += np.float32(0.2) * (first + update.delta)
        return fl.ApplyResult(0.2)


def test_custom_rule_may_send_a_version_again(tmp_path: Path) -> None:
    """With fragments, the client trains the same version of the same fragment again."""
    own = fl.Method(submodel=METHODS["fed-raa"].submodel, update=TrainTwice(), schedule=AsyncSchedule(), name="own")
    sent = lines_of_kind(simulate(own, tmp_path, 60, **UNEVEN), "dispatch")
    for _, tasks in sent.groupby("client"):
        pairs = tasks[["fragment", "version"]].to_numpy()
        even = len(pairs) // 2 * 2
        assert (pairs[0:even:2] == pairs[1:even:2]).all()
        assert (tasks["bytes_down"].to_numpy()[1:even:2] == 0).all()
    assert "TrainTwice are not checked" in replay(tmp_path)


class SignStep(fl.ServerOptimizer):
    def step(self, params: Any, delta: Any, moved: Any) -> None:
        np.add(params, np.float32(0.01) * np.sign(delta), out=params, where=moved)


@pytest.mark.parametrize("method", ["fedbuff", "fadas"])
def test_buffer_with_a_custom_optimizer_is_replayed_without_its_code(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(method, tmp_path, 20, server_optimizer=SignStep(), buffer_size=3)
    monkeypatch.setattr(SignStep, "step", None)
    assert "SignStep are not checked" in replay(tmp_path)


@pytest.mark.parametrize(("method", "tables"), [("ringleader", 2), ("ace", 1), ("ringmaster", 0)])
def test_memory_for_every_client_is_counted_once(method: str, tables: int) -> None:
    """The memory of each client is its rows of the tables and the version that it received."""
    few, more = (
        Need.of(build_run(Experiment(method=method, engine="local", dataset="digits", clients=clients)))
        for clients in (10, 30)
    )
    size = build_run(Experiment(method=method, engine="local")).params.nbytes
    assert more.server - few.server == pytest.approx(20 * (tables + 1) * size)
    assert more.per_client == (tables + 1) * size


def test_ringmaster_refuses_server_shards() -> None:
    with pytest.raises(ValueError, match=r"^server_shards: .*ringmaster"):
        resolve_method(Experiment(method="ringmaster", server_shards=2))
