"""Numbers of local steps that follow from costs, against values by hand; minibatches that continue across tasks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedraa import Dataset, Experiment
from fedraa.client.auto_steps import AutoSteps
from fedraa.client.trainer import Trainer
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_cost_model, make_server, make_worker_spec
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Task, Vector
from fedraa.rng import generator

DEVICES = "compute,downlink,uplink,latency\n1,0.5,0.25,0.1\n2,inf,inf,0\n4,0.01,0.01,0\n"


def spec(tmp_path: Path, **flags: Any) -> RunSpec:
    """Return a run of three clients of 20 samples in minibatches of 8, 8 and 4, with fragments of 1/4 and 3/4."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 3)).astype(np.float32), np.arange(70) % 3
    (tmp_path / "devices.csv").write_text(DEVICES)
    common = {"method": "fed-raa", "ratios": (0.25, 0.75), "hidden": (8,), "clients": 3, "batch_size": 8}
    common |= {
        "engine": "local",
        "compute": str(tmp_path / "devices.csv"),
        "local_steps": "auto:2",
        "duration_jitter": 0.0,
    }
    data = Dataset("tiny", x[:60], y[:60], x[60:], y[60:], 3)
    return build_run(Experiment(**common | flags), dataset=data)


def test_auto_steps_equal_the_transfer_time_in_steps(tmp_path: Path) -> None:
    run = spec(tmp_path)
    costs, full = make_cost_model(run), 8 * 3 + 8 + 3 * 8 + 3
    # Each of three clients has a random third of the labels 0, 1, 2, 0, 1, 2, ...
    counts = np.array([np.bincount(run.data.client(client)[1], minlength=3) for client in range(3)])
    overlap = np.minimum(counts / 20, 1 / 3).sum(axis=1).mean()
    longest = 15 * overlap / (1 - overlap)
    assert [part.widths for part in run.submodels] == [(2,), (6,)]
    for widths, size in (((2,), 2 * 7 + 3), ((6,), 6 * 7 + 3)):
        share = size / full
        # The mean number of samples in a minibatch.
        batch = 20 / 3
        move = np.array([0.1 + share / 0.5 + share / 0.25, 0.0, 2 * share / 0.01])
        step = share * batch / (20 * 5) / np.array([1, 2, 4])
        steps = np.maximum(2, np.rint(np.minimum(longest, move / step))).astype(int)
        assert [costs.steps(widths, n) for n in range(3)] == steps.tolist()
        assert steps[1] == 2 < steps[0] < steps[2]
        table = costs.table([part.widths for part in run.submodels])[:, [(2,), (6,)].index(widths)]
        np.testing.assert_allclose(table, move + steps * step)
        np.testing.assert_allclose([costs.cost(widths, n, 4 * size, 4 * size).duration for n in range(3)], table)
        np.testing.assert_allclose(costs.step_rates([widths], table[:, None]), steps / table)


def test_auto_steps_without_transfer_time_are_one_pass_or_the_minimum(tmp_path: Path) -> None:
    """If sending takes no time, H is at most the number of batches of a pass: three, of 8, 8 and 4 samples."""
    default = make_cost_model(spec(tmp_path, local_steps="auto", compute="1:1"))
    assert [default.steps((2,), client) for client in range(3)] == [3, 3, 3]
    minimum = make_cost_model(spec(tmp_path, local_steps="auto:20", compute="1:1"))
    assert minimum.steps((2,), 0) == 20


def test_auto_steps_without_transfer_time_shrink_if_labels_differ(tmp_path: Path) -> None:
    """H is 15 times the overlap. Each of three clients has one of three labels, or each has a third of each label."""
    single = {"partition": "labels(per_client=1)"}
    for more, steps in ((single, 5), ({"partition": "iid"}, 15)):
        run = spec(tmp_path, local_steps="auto", compute="1:1", batch_size=1, **more)
        labels = [run.data.client(client)[1] for client in range(3)]
        shares = np.array([np.bincount(y, minlength=3) / len(y) for y in labels])
        overlap = np.minimum(shares, 1 / 3).sum(axis=1).mean()
        assert round(15 * overlap) in range(steps - 2, steps + 1)
        assert [make_cost_model(run).steps((2,), client) for client in range(3)] == [round(15 * overlap)] * 3
    # A task of one step has no halves whose directions could be compared.
    assert AutoSteps().minimum_steps(np.array([1, 40]), 0.0, 1.0).tolist() == [2, 2]
    assert AutoSteps().minimum_steps(np.array([1, 4, 40]), 1.0, 1.0).tolist() == [2, 4, 15]
    # Clients with less than half of the mean number of samples may have tasks of one step.
    assert AutoSteps().minimum_steps(np.array([1, 1, 40]), 1.0, np.array([0.49, 0.5, 0.4])).tolist() == [1, 2, 15]
    assert AutoSteps(minimum=4).minimum_steps(np.array([1, 40]), 0.0, 1.0).tolist() == [4, 4]


@pytest.mark.parametrize(("overlap", "limit"), [(1.0, 1000), (0.9, 135), (0.5, 15), (0.2, 4), (0.05, 2), (0.0, 2)])
def test_steps_of_slow_links_are_limited_if_labels_differ(overlap: float, limit: int) -> None:
    """Sending takes as long as 1,000 steps. The limit is 15 o / (1 - o), and at least the smallest number of steps."""
    move, step, whole, size = np.array([10.0]), np.array([0.01]), np.array([40]), np.array([1.0])
    assert AutoSteps().count(move, step, whole, overlap, size).tolist() == [limit]
    assert AutoSteps(minimum=40).count(move, step, whole, overlap, size).tolist() == [max(40, limit)]
    assert AutoSteps(kappa=0.5).count(move, step, whole, overlap, size).tolist() == [min(500, limit)]


def test_only_clients_with_few_samples_have_tasks_of_one_step(tmp_path: Path) -> None:
    """A class has 8, 12 or 40 samples, and a client has one class. The mean is 20, and a minibatch has 40 samples."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 3)).astype(np.float32), np.repeat([0, 1, 2, 0], [8, 12, 40, 10])
    data = Dataset("unequal", x[:60], y[:60], x[60:], y[60:], 3)
    settings: dict[str, Any] = {"method": "fed-quilt", "local_steps": "auto", "fragments": 2, "hidden": (8,)}
    settings |= {"clients": 3, "batch_size": 40}
    run = build_run(Experiment(**settings, partition="labels(per_client=1)", engine="local"), dataset=data)
    steps = {int(size): make_cost_model(run).steps((4,), client) for client, size in enumerate(run.data.sizes)}
    assert steps == {8: 1, 12: 2, 40: 2}


def test_auto_steps_are_parsed_from_the_minimum_and_kappa() -> None:
    assert AutoSteps.of(None) is None
    assert AutoSteps.of(7) is None
    assert [AutoSteps.of(text) for text in ("auto", "auto:5", "auto:5:0.5", "auto:5:0")] == [
        AutoSteps(None, 1.0),
        AutoSteps(5, 1.0),
        AutoSteps(5, 0.5),
        AutoSteps(5, 0.0),
    ]


@pytest.mark.parametrize("steps", ["automatic", "auto:0", "auto:2:-1", "20 steps", 0])
def test_invalid_local_steps_are_refused(steps: object) -> None:
    with refuses("local_steps", got=steps):
        Experiment(local_steps=steps)


class RecordingTrainer(Trainer):
    """A trainer that records the order of samples of each task."""

    def order(self, task: Task, samples: int) -> list[int]:
        return np.concatenate([rows for batches in self._iter_epochs(task, samples) for rows in batches]).tolist()


def task(first: int, steps: int | None) -> Task:
    nothing: Vector = np.empty(0, np.float32)
    return Task(0, 1, 4, 0, 0, 0, (), nothing, 0.1, 1.0, steps=steps, first=first)


def test_minibatches_continue_across_tasks(tmp_path: Path) -> None:
    """Tasks of 2, 3 and 4 steps use the nine minibatches of three passes. Each pass has another permutation."""
    run = spec(tmp_path)
    trainer = RecordingTrainer(run.traced, run.method.local, seed=5)
    order = [row for first, steps in ((0, 2), (2, 3), (5, 4)) for row in trainer.order(task(first, steps), 20)]
    passes = [generator(5, "passes", 1, number).permutation(20).tolist() for number in range(3)]
    assert order == [row for one_pass in passes for row in one_pass]
    assert trainer.order(task(4, 1), 20) == passes[1][8:16]


def test_next_task_starts_after_the_minibatches_of_the_last_task(tmp_path: Path) -> None:
    run = spec(tmp_path, local_steps="auto:2:0")
    server, trainer = make_server(run, lambda kind, t, /, **fields: None), make_worker_spec(run).trainer("cpu")
    tasks = {client: server.assign(client, 0.0) for client in server.begin()}
    assert [(one.first, one.steps) for one in tasks.values()] == [(0, 2)] * 3
    server.commit(trainer.train(tasks[1], *run.data.client(1)), 1.0)
    again = make_server(run, lambda kind, t, /, **fields: None)
    again.restore(server.state())
    for each_server in (server, again):
        assert [(one.first, one.steps) for one in [each_server.assign(1, 1.0)]] == [(2, 2)]


def test_minibatches_of_a_failed_task_are_skipped(tmp_path: Path) -> None:
    """The minibatches of a failed task would fail again, so the client's next task begins after them."""
    run = spec(tmp_path, local_steps="auto:2:0")
    server = make_server(run, lambda kind, t, /, **fields: None)
    tasks = {client: server.assign(client, 0.0) for client in server.begin()}
    assert list(server.drop(tasks[1].id, "nothing", 1.0)) == [1]
    assert (server.assign(1, 1.0).first, tasks[1].first) == (2, 0)
