"""User-defined partitioners: their shards, and the errors about malformed partitions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.data import divide_samples, make_partitioner
from fedraa.data.partition.dirichlet import Dirichlet
from fedraa.data.partition.iid import Iid
from fedraa.data.partition.labels import Labels

Y = np.arange(60) % 3
Y_TEST = np.repeat([0, 1, 2], 20)


class ByParity(fl.Partitioner):
    def assign(self, labels: Any, clients: int, rng: np.random.Generator) -> Sequence[Any]:
        return np.array_split(np.argsort(labels % 2, kind="stable"), clients)


@dataclass(frozen=True)
class Few:
    """A partitioner that is not a subclass of Partitioner. Each client owns `rows` consecutive rows."""

    rows: int = 2

    def assign(self, labels: Any, clients: int, rng: np.random.Generator) -> list[list[int]]:
        return [list(range(self.rows * client, self.rows * client + self.rows)) for client in range(clients)]


def one_class_each(labels: Any, clients: int, rng: np.random.Generator) -> list[Any]:
    return [rng.permutation(np.flatnonzero(labels == client)) for client in range(clients)]


def shards(partitioner: object, clients: int = 3) -> tuple[list[Any], list[Any]]:
    """Return the training and the test rows of every client."""
    partition = divide_samples(make_partitioner(partitioner), Y, Y_TEST, clients, seed=0)
    train, test = (np.split(part.order, part.offsets[1:-1]) for part in (partition.train, partition.test))
    return train, test


@pytest.mark.parametrize("rows", [[[0, 1], [2]], ([0], [1]), {0: [0, 1], 1: [2]}])
def test_rows_without_a_function_are_refused_with_the_function_to_write(rows: object) -> None:
    with refuses("partition", "lambda", got=rows):
        make_partitioner(rows)


def test_a_function_that_returns_a_mapping_is_refused_with_a_remedy() -> None:
    def by_client(labels: Any, clients: int, rng: np.random.Generator) -> Any:
        return {client: [client] for client in range(clients)}

    with refuses(f"partition: {by_client.__qualname__}", "return a list"):
        shards(by_client)


def test_clients_train_on_the_assigned_rows_and_test_on_the_same_classes() -> None:
    train, test = shards(ByParity())
    # Labels 0 and 2 are even: rows 0, 2, 3, 5, ... come first. 40 of 60 rows are even, so client 2 has all odd ones.
    assert train[0].tolist()[:4] == [0, 2, 3, 5]
    assert [len(rows) for rows in train] == [20, 20, 20]
    assert (Y[train[2]] == 1).all()
    # These are the test rows of label 1.
    assert sorted(test[2]) == list(range(20, 40))
    assert sorted(np.concatenate(test)) == list(range(60))
    # The first 20 even rows are ten of label 0 and ten of label 2, half of each: so are its test rows.
    assert np.bincount(Y_TEST[test[0]], minlength=3).tolist() == [10, 0, 10]


@pytest.mark.parametrize("partition", [ByParity, ByParity(), ByParity().assign, f"{__name__}:ByParity"])
def test_partitioner_may_be_a_class_an_object_a_function_or_a_path(partition: object) -> None:
    for dealt, expected in zip(shards(partition), shards(ByParity()), strict=True):
        assert [rows.tolist() for rows in dealt] == [rows.tolist() for rows in expected]


def test_partitioner_function_draws_from_the_seed() -> None:
    train, test = shards(one_class_each)
    again, _ = shards(f"{__name__}:one_class_each")
    assert [set(Y[rows]) for rows in train] == [set(Y_TEST[rows]) for rows in test] == [{0}, {1}, {2}]
    assert [rows.tolist() for rows in train] == [rows.tolist() for rows in again]
    assert train[0].tolist() != sorted(train[0])


def test_partitioner_may_omit_rows_and_whole_classes() -> None:
    # Rows 0 and 1 have the labels 0 and 1.
    train, test = shards(Few(1), clients=2)
    assert [rows.tolist() for rows in train] == [[0], [1]]
    assert [sorted(rows) for rows in test] == [list(range(20)), list(range(20, 40))]


def test_partitioner_values_may_come_from_options_text_or_objects() -> None:
    assert make_partitioner("dirichlet", dirichlet=0.1) == Dirichlet(0.1)
    assert make_partitioner({"kind": "dirichlet"}, dirichlet=0.1) == Dirichlet(0.1)
    assert make_partitioner("dirichlet(alpha=0.2)", dirichlet=0.1) == Dirichlet(0.2)
    assert make_partitioner("dirichlet(0.2)") == Dirichlet(0.2)
    assert make_partitioner("labels(per_client=5)") == Labels(5)
    assert fl.Experiment(partition=Dirichlet(0.1)).model_dump(mode="json")["partition"] == "Dirichlet(alpha=0.1)"
    assert make_partitioner("Dirichlet(alpha=0.1)") == Dirichlet(0.1)


@pytest.mark.parametrize("built_in", [Iid(), Dirichlet(5.0), Labels(2)])
def test_custom_partitioner_can_extend_a_built_in_one(built_in: Any) -> None:
    class Reversed(type(built_in)):  # type: ignore[misc]
        def assign(self, labels: Any, clients: int, rng: np.random.Generator) -> Sequence[Any]:
            return list(super().assign(labels, clients, rng))[::-1]

    train, _ = shards(Reversed())
    assert sorted(np.concatenate(train)) == list(range(60))
    custom = divide_samples(Reversed(), Y, Y_TEST, 3, seed=0).train
    expected = divide_samples(built_in, Y, Y_TEST, 3, seed=0).train
    if built_in == Iid():
        assert custom.order[:20].tolist() == expected.order[40:].tolist()


def returning(rows: Any) -> Callable[..., Any]:
    def mine(labels: Any, clients: int, rng: np.random.Generator) -> Any:
        return rows

    mine.__qualname__ = "mine"
    return mine


@pytest.mark.parametrize(
    ("rows", "field", "names"),
    [
        ([[0], [1]], "mine", ["2 arrays"]),
        (None, "mine", ["None"]),
        ([[0], [1], [60]], "mine for client 2", ["60"]),
        ([[0], [-1], [2]], "mine for client 1", ["-1"]),
        ([[0], [], [2]], "mine for client 1", ["no row"]),
        ([[0, 4], [1], [2, 4]], "mine", ["row 4 ", "client 0 ", "client 2"]),
        ([[0], [1, 1], [2]], "mine", ["row 1 ", "client 1 ", "again"]),
        ([[0.0], [1.0], [2.0]], "mine for client 0", ["float64 [1]"]),
        (np.zeros((3, 2, 2), int), "mine for client 0", ["int64 [2, 2]"]),
    ],
)
def test_wrong_partition_is_refused_with_partitioner_client_and_row(rows: Any, field: str, names: list[str]) -> None:
    with refuses(f"partition: {field}", *names):
        divide_samples(make_partitioner(returning(rows)), Y, Y_TEST, 3, seed=0)


def failing(labels: Any, clients: int, rng: np.random.Generator) -> Any:
    raise KeyError("speaker")


class Unable(fl.Partitioner):
    """A partitioner that assigns no samples."""


@pytest.mark.parametrize(
    ("partition", "field", "names"),
    [
        (failing, "partition", ["failing (test_own_partitioner.py, line ", "KeyError", "'speaker'"]),
        (Unable, "partition", ["Unable"]),
        (3, "partition", ["3"]),
        (f"{__name__}:Absent", "partition", [":Absent"]),
        ("dirichlet(alpha=-1)", "partition.alpha", ["-1"]),
        ("dirichlet(beta=1)", "partition", ["beta"]),
    ],
)
def test_partitioner_that_cannot_be_used_is_refused_before_the_start(
    partition: object, field: str, names: list[str], tmp_path: Path
) -> None:
    with refuses(field, *names):
        fl.run(fl.Experiment(partition=partition, clients=3, engine="local", out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_run_trains_on_the_shards_of_a_custom_partitioner(tmp_path: Path) -> None:
    history = fl.run(
        fl.Experiment(partition=ByParity(), clients=4, updates=4, engine="local", quiet=True, out=tmp_path / "run")
    )
    assert history.config["experiment"]["partition"] == f"{__name__}:ByParity"
    assert history.config["resolved"]["samples"] == [360, 359, 359, 359]
    assert history.summary["steps"] == 4
