"""A dry run without training predicts the tasks, the time and the staleness of an asynchronous run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedraa import Experiment, run
from fedraa.cli.plan_outlook import first_ledger, make_task_cost
from fedraa.devices.availability import Timing
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_planner
from fedraa.engine.forecast import dry_run


def forecast(experiment: Experiment, **limits: Any) -> Any:
    spec = build_run(experiment)
    planner = make_planner(spec)
    cost = make_task_cost(spec, np.arange(len(spec.fleet)))
    update: Any = spec.method.update
    timing = Timing(experiment.seed, experiment.duration_jitter)
    return dry_run(first_ledger(spec, planner), update, timing, cost, **limits)


@pytest.mark.parametrize("concurrency", [None, 3])
@pytest.mark.parametrize("method", ["fed-raa", "fed-raa-random", "fed-raa-mp", "fed-raa-offline", "fedasync"])
def test_dry_run_predicts_the_time_staleness_and_tasks_of_the_run(
    method: str, concurrency: int | None, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"updates": 60, "seed": 5, "engine": "local", "local_steps": 1, "concurrency": concurrency}
    experiment = Experiment(method=method, out=tmp_path / "run", **given)
    dry, events = forecast(experiment, steps=60), run(experiment).events
    commits = events[events["kind"] == "commit"]
    assert dry.time == pytest.approx(commits["t"].iloc[-1], rel=1e-12)
    assert (dry.steps, dry.staleness_max) == (60, commits["staleness"].max())
    assert dry.staleness_mean == pytest.approx(commits["staleness"].mean())
    fragments = commits["fragment"].astype(int).value_counts()
    assert dry.tasks == tuple(fragments.get(j, 0) for j in range(len(dry.tasks)))


def test_a_dry_run_follows_links_that_change_with_time(tmp_path: Path) -> None:
    links = tmp_path / "links.csv"
    links.write_text("client,end,downlink,uplink\n0,0.05,10,10\n0,0.2,2,3\n1,0.3,4,4\n1,0.4,9,1\n")
    given: dict[str, Any] = {"updates": 40, "clients": 2, "engine": "local", "local_steps": 1, "links": links}
    experiment = Experiment(method="fed-raa", out=tmp_path / "run", **given)
    dry, events = forecast(experiment, steps=40), run(experiment).events
    assert dry.time == pytest.approx(events.query("kind == 'commit'")["t"].iloc[-1], rel=1e-12)


def test_dry_run_of_a_buffer_with_a_time_limit_predicts_the_run(tmp_path: Path) -> None:
    experiment = Experiment(
        method="fedbuff", buffer_size=4, time=1.5, seed=5, engine="local", local_steps=1, out=tmp_path / "run"
    )
    history = run(experiment)
    dry = forecast(experiment, steps=10**6, time=1.5)
    assert dry.steps == history.summary["steps"]
    assert sum(dry.tasks) == history.summary["tasks"]
    assert dry.staleness_mean == pytest.approx(history.summary["staleness_mean"])


@pytest.mark.parametrize("clock", ["fragment", "server"])
def test_forecast_counts_staleness_in_versions_of_the_fragment(clock: str) -> None:
    """The rule takes the staleness of its clock, which does not change the forecast."""
    override = {"schedule.staleness_clock": clock}
    experiment = Experiment(method="fed-raa", staleness="polynomial", seed=5, local_steps=1, override=override)
    spec = build_run(experiment)
    assert first_ledger(spec, make_planner(spec)).staleness_clock == clock
    dry = forecast(experiment, steps=60)
    other = forecast(experiment.model_copy(update={"override": {}}), steps=60)
    assert (dry.staleness_mean, dry.staleness_max) == (other.staleness_mean, other.staleness_max)


def test_sample_of_the_clients_has_the_same_share_at_work() -> None:
    spec = build_run(Experiment(method="fed-raa", clients=10, concurrency=5))
    planner = make_planner(spec)
    for sample, limit in ((10, 5), (4, 2), (1, 1)):
        assert first_ledger(spec, planner.for_clients(np.arange(sample))).concurrency.limit == limit
