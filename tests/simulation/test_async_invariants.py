"""Properties of every asynchronous run, for any method and model."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedraa import Dataset, Experiment, History, Method, run
from fedraa.engine.build import build_run
from fedraa.engine.executor import FinishedEvaluation, PendingEvaluation
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.engine.session import RunSession
from fedraa.messages import Evaluation, Fault, State, Task, Update, Vector
from fedraa.objectives import MetricSpec
from fedraa.replay.replay import replay

TRAINED = {"engine": "local", "hidden": (20,), "clients": 6, "local_epochs": 1, "updates": 60, "quiet": True}
CLIENTS = 10


class UnchangedParameters:
    """An executor that returns the parameters of every task unchanged, because only decisions and times matter."""

    workers = 1

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}

    def share(self, params: Vector) -> Vector:
        return params

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = task

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        work = self._tasks.pop(task)
        return Update(work.id, work.client, work.fragment, work.version, work.params, steps=1, loss=0.0, seconds=0.0)

    def ready(self, timeout: float) -> list[Update | Fault]:
        raise NotImplementedError("the virtual clock asks for tasks by number")

    def evaluate(self, params: Vector, kept: State) -> PendingEvaluation:
        return FinishedEvaluation(params, kept, Evaluation(dict.fromkeys(MetricSpec().columns, 0.0)))

    def busy(self) -> tuple[int, int]:
        return 1, 1

    def close(self) -> None:
        self._tasks.clear()


def simulate(method: str | Method, directory: Path, updates: int, clients: int = CLIENTS, **flags: Any) -> History:
    """Simulate a run without training: five clients of compute speed 1 and five of speed 3, with 100 samples each."""
    experiment = Experiment(
        method=method, clients=clients, hidden=(100,), updates=updates, eval_every=updates, engine="local", **flags
    )
    directory.mkdir(parents=True, exist_ok=True)
    x, y = np.random.default_rng(0).normal(size=(1000, 10)).astype(np.float32), np.arange(1000) % 2
    spec = build_run(experiment, dataset=Dataset("even", x, y, x[:20], y[:20], 2))
    RunSession(spec, directory, UnchangedParameters(), threading.Event()).execute()
    return History(directory)


def log(history: History, *without: str) -> list[dict[str, object]]:
    """Return the events without real times and without the fields `without`."""
    return [
        {field: value for field, value in line.items() if field not in ("wall", *without)} for line in history.lines()
    ]


def test_fed_raa_with_one_fragment_equals_fedasync(tmp_path: Path) -> None:
    flags: dict[str, Any] = TRAINED | {"mixing": 0.7, "staleness": "polynomial"}
    one = run(Experiment(method="fed-raa", fragments=1, out=tmp_path / "one", **flags))
    fedasync = run(Experiment(method="fedasync", out=tmp_path / "fedasync", **flags))
    assert log(one) == log(fedasync)
    assert one.summary["model_sha256"] == fedasync.summary["model_sha256"]


def test_greedy_without_a_delay_bound_equals_minimum_priority(tmp_path: Path) -> None:
    greedy = run(Experiment(method="fed-raa", delay_bound=1e9, out=tmp_path / "greedy", **TRAINED))
    priority = run(Experiment(method="fed-raa-mp", out=tmp_path / "priority", **TRAINED))
    bounded = run(Experiment(method="fed-raa", out=tmp_path / "bounded", **TRAINED))
    assert log(greedy, "feasible_fragments") == log(priority, "feasible_fragments")
    assert greedy.summary["model_sha256"] == priority.summary["model_sha256"] != bounded.summary["model_sha256"]


@pytest.mark.parametrize("method", ["fed-raa", "fed-raa-random", "fed-raa-mp", "fed-raa-offline", "fedasync"])
def test_updates_per_fragment_sum_to_the_step(method: str, tmp_path: Path) -> None:
    history = simulate(method, tmp_path, 300)
    replay(tmp_path)
    events = history.events
    dispatches = events[events["kind"] == "dispatch"]
    assert (dispatches["fragment_updates"].map(sum) == dispatches["step"]).all()
    commits = events[events["kind"] == "commit"]
    last = commits.groupby("fragment")["version"].max()
    assert last.sum() == len(commits) == 300
    for _, versions in commits.groupby("fragment")["version"]:
        assert versions.tolist() == [*range(1, len(versions) + 1)]


@pytest.mark.parametrize("fragments", [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 5))])
def test_mean_global_staleness_is_the_number_of_other_clients(fragments: int, tmp_path: Path) -> None:
    """Between two updates of a client, the other clients have N - 1 updates on average, at any speeds."""
    events = simulate("fed-raa", tmp_path, 3000, fragments=fragments).events
    staleness = events.loc[events["kind"] == "commit", "staleness_total"]
    assert staleness.mean() == pytest.approx(CLIENTS - 1, abs=0.05)


@pytest.mark.parametrize("clock", ["fragment", "server"])
def test_staleness_clock_weighs_updates_by_its_staleness(clock: str, tmp_path: Path) -> None:
    """With 10 busy clients and the server's staleness clock, every update has a weight of about .6 / sqrt(10) = .19."""
    override = {"schedule.staleness_clock": clock}
    history = simulate("fed-raa", tmp_path, 400, staleness="polynomial", override=override)
    replay(tmp_path)
    commits = history.events.query("kind == 'commit'")
    counted = {"fragment": "staleness", "server": "staleness_total"}[clock]
    np.testing.assert_allclose(commits["weight"], 0.6 / np.sqrt(commits[counted] + 1))
    assert commits["weight"].mean() == pytest.approx({"fragment": 0.36, "server": 0.2}[clock], abs=0.03)


@pytest.mark.parametrize("fields", [{"method": "fedasync", "staleness": "polynomial"}, {"method": "fed-raa"}])
def test_staleness_clock_without_effect_is_refused(fields: dict[str, Any]) -> None:
    override = {"schedule.staleness_clock": "server"}
    with refuses("schedule.staleness_clock"):
        build_run(Experiment(**TRAINED, **fields, override=override))


def test_mean_staleness_of_the_offline_assignment_follows_from_the_owners(tmp_path: Path) -> None:
    """The mean staleness of fragment j is its number of other owners: sum_j share_j (owners_j - 1).

    By ceil(3 n / 10) the three fastest clients own the 50 % fragment, two fast clients and a slow one own the 30 %
    fragment, and four slow clients own the 20 % fragment. They make 3 * 3/.5 = 18, 2 * 3/.3 + 1/.3 = 23.3 and
    4 * 1/.2 = 20 updates per time unit, 61.3 together.
    """
    rates = np.array([20, 70 / 3, 18])
    expected = (rates / rates.sum() * np.array([3, 2, 2])).sum()
    events = simulate("fed-raa-offline", tmp_path, 3000, fragments=3).events
    commits = events[events["kind"] == "commit"]
    assert commits["staleness"].mean() == pytest.approx(expected, abs=0.03)
    shares = commits["fragment"].value_counts(normalize=True).sort_index()
    np.testing.assert_allclose(shares, rates / rates.sum(), atol=0.01)


# The fast tests have each scheduler once, each with another number of fragments. The other cases are slow tests.
QUICK_SHARES = (("fed-raa", 4), ("fed-raa-mp", 3), ("fed-raa-random", 2))


@pytest.mark.parametrize(
    ("method", "fragments"),
    [
        pytest.param(method, fragments, marks=[] if (method, fragments) in QUICK_SHARES else [pytest.mark.slow])
        for method in ("fed-raa", "fed-raa-mp", "fed-raa-random")
        for fragments in (2, 3, 4, 5)
    ],
)
def test_time_per_update_is_the_mean_cost_over_the_sum_of_speeds(method: str, fragments: int, tmp_path: Path) -> None:
    """With busy clients and equal shares of updates, the time per update is the mean cost / sum of speeds = 1 / (20 M).

    The output bias is in every fragment, so the fragments have 100 (10 + 1 + 2) + 2 M parameters together. The model
    has 1302.
    """
    summary = simulate(method, tmp_path, 1500, fragments=fragments).summary
    assert isinstance(summary["time"], float)
    tolerance = 0.03 if method == "fed-raa-random" else 0.01
    expected = (1300 + 2 * fragments) / 1302 / fragments / 20
    assert summary["time"] / 1500 == pytest.approx(expected, rel=tolerance)


def test_greedy_lowers_the_worst_staleness(tmp_path: Path) -> None:
    """The longest task takes K* = .2 with the bound and .4 without: .2 * 80 and .4 * 80 updates arrive in this time."""
    worst = {}
    for method, longest in (("fed-raa", 0.2), ("fed-raa-mp", 0.4)):
        events = simulate(method, tmp_path / method, 1500, fragments=4).events
        worst[method] = events["staleness_total"].max()
        # The upper bound also allows for the tasks in progress at the start of the longest task, and for the jitter.
        assert longest * 80 <= worst[method] <= 1.1 * longest * 80 + CLIENTS - 1
    assert worst["fed-raa"] < 0.75 * worst["fed-raa-mp"]


def test_untouched_coordinates_keep_their_bits(tmp_path: Path) -> None:
    """Each update changes only its fragment. Weights between fragments stay zero."""
    experiment = Experiment(
        method="fed-raa-random", clients=4, fragments=3, hidden=(10, 20), local_steps=2, engine="local"
    )
    spec = build_run(experiment)
    server, trainer = make_server(spec, lambda kind, t, **fields: None), make_worker_spec(spec).trainer("cpu")
    inside = [np.isin(np.arange(spec.traced.size), part.index) for part in spec.submodels]
    never = ~np.logical_or.reduce(inside)
    # With 20, 30 and 50 % of 10 and 20 units, 200 - 2*4 - 3*6 - 5*10 weights between the layers are in no fragment.
    assert never.sum() == 124
    rng = np.random.default_rng(0)
    flying = [server.assign(client, 0.0) for client in server.begin()]
    touched: set[int] = set()
    for _ in range(20):
        task = flying.pop(rng.integers(len(flying)))
        before = server.params.copy()
        [client] = server.commit(trainer.train(task, *spec.data.client(task.client)), 0.0)
        changed = server.params != before
        assert changed.any()
        assert not changed[~inside[task.fragment]].any()
        assert (server.params[never] == 0).all()
        touched.add(task.fragment)
        flying.append(server.assign(client, 0.0))
    assert touched == {0, 1, 2}
