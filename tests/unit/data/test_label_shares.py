"""The shares of the labels in the data of all clients, for data in memory and for data that clients create."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedraa as fl
from fedraa.cli.plan import describe_tasks
from fedraa.engine.build import build_run
from fedraa.engine.factories import bind_rule
from fedraa.server.async_rule import ApplyResult, AsyncModel, ClientUpdate

LABELS = {0: [0, 0, 0, 1], 1: [0, 0, 0, 2]}
SHARES = (0.75, 0.125, 0.125)


def make_samples(client: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.array(LABELS[client])
    return np.random.default_rng(client).standard_normal((len(y), 5)).astype(np.float32), y


def stored_data() -> fl.Dataset:
    x, y = (np.concatenate(parts) for parts in zip(make_samples(0), make_samples(1), strict=True))
    return fl.Dataset("dealt", x, y, x, y, classes=3)


def generated_data() -> fl.FederatedDataset:
    return fl.FederatedDataset("made", make_samples, make_samples(0), 3, sizes=4)


@pytest.mark.parametrize("make_dataset", [stored_data, generated_data])
def test_label_shares_count_the_samples_of_all_clients(make_dataset: Callable[[], object]) -> None:
    experiment = fl.Experiment(method="fed-quilt", clients=2, updates=1, engine="local")
    assert build_run(experiment, dataset=make_dataset()).label_shares == pytest.approx(SHARES)


@pytest.mark.parametrize("make_dataset", [stored_data, generated_data])
def test_label_overlap_compares_each_client_with_all(make_dataset: Callable[[], object]) -> None:
    """Client 0 has the shares .75, .25, 0 and client 1 has .75, 0, .25; both overlap by .75 + .125 with all data."""
    experiment = fl.Experiment(method="fed-quilt", clients=2, updates=1, engine="local", partition=None)
    run = build_run(experiment, dataset=make_dataset())
    labels = [run.data.client(client)[1] for client in range(2)]
    smaller = [min((y == label).mean(), share) for y in labels for label, share in enumerate(SHARES)]
    assert run.label_overlap == pytest.approx(sum(smaller) / 2)


def test_label_overlap_of_the_clients_own_data_is_exact() -> None:
    experiment = fl.Experiment(method="fed-quilt", clients=2, updates=1, engine="local")
    assert build_run(experiment, dataset=generated_data()).label_overlap == pytest.approx(0.875)


def test_labels_are_not_measured_if_the_method_does_not_need_them() -> None:
    experiment = fl.Experiment(method="fedavg", clients=2, rounds=1, engine="local")
    run = build_run(experiment, dataset=generated_data())
    assert (run.label_shares, run.label_overlap) == (None, 1.0)


def test_overlap_is_measured_for_a_rule_that_reads_it_whatever_the_number_of_steps() -> None:
    for method, measured in (("fed-quilt", 0.875), ("fed-raa", 1.0)):
        experiment = fl.Experiment(method=method, local_steps=3, clients=2, updates=1, engine="local")
        assert build_run(experiment, dataset=generated_data()).label_overlap == pytest.approx(measured)


def test_rule_on_the_server_receives_the_overlap(tmp_path: Path) -> None:
    seen: list[float] = []

    class Recorder(fl.AsyncRule):
        uses_label_overlap = True

        def start(self, model: AsyncModel) -> None:
            seen.append(model.label_overlap)

        def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
            return ApplyResult(0.0)

    fl.run(
        method="fed-raa",
        async_rule=Recorder(),
        dataset=generated_data(),
        clients=2,
        updates=1,
        engine="local",
        out=tmp_path / "run",
        quiet=True,
    )
    assert seen
    assert seen == pytest.approx([0.875] * len(seen))


def test_rule_that_only_computes_weights_receives_the_overlap() -> None:
    """A plan and a server on shards use such a rule."""

    class ByOverlap(fl.AsyncRule):
        uses_label_overlap = True
        mixing_formula = "add-delta"

        def start(self, model: AsyncModel) -> None:
            self.overlap, self.tensors = model.label_overlap, model.tensors

        def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
            raise AssertionError

        def weight(self, staleness: int, balance: float = 1.0) -> float:
            return self.overlap / 2

    experiment = fl.Experiment(method="fed-raa", async_rule=ByOverlap(), clients=2, updates=1, engine="local")
    spec = build_run(experiment, dataset=generated_data())
    rule = bind_rule(spec)
    assert isinstance(rule, ByOverlap)
    assert rule.weight(0) == pytest.approx(0.4375)
    assert sum(np.prod(shape) for shape in rule.tensors) == len(spec.params)
    [line] = [line for line in describe_tasks(spec) if line.startswith("weights")]
    assert line.split()[1] == "0.438"
