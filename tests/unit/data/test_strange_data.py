"""Malformed data are refused before most of them are read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refuses

import fedraa as fl
from fedraa.data import DivisionSettings, divide_dataset, load_dataset
from fedraa.data.partition.iid import Iid
from fedraa.data.partition.natural import Natural
from fedraa.objectives import describe_misfit, make_objective

X, Y = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3


class Items:
    """A map-style dataset of torch."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self._item = item

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> Any:
        return self._item(row)


def made(train: Any, **more: Any) -> fl.FederatedDataset:
    return fl.FederatedDataset("mine", train, (X, Y), **more)


OBJECTS: list[tuple[Callable[[], fl.FederatedDataset], str, Any]] = [
    (lambda: made(Items(lambda row: [][row])), "row 0", None),
    (lambda: made(Items(lambda row: ({"a" if row != 3 else "b": X[row]}, 1))), "row 3 sample", ["b"]),
    (lambda: made((X[:0], Y[:0])), "train", None),
    (lambda: made((X, Y), clients=7), "clients", 7),
    (lambda: made((X, Y), clients="abcdefghijkl"), "clients", "abcdefghijkl"),
    (lambda: made((X, Y), clients=[[1]] * 12), "clients", [1]),
    (lambda: made((X, Y), classes=0), "classes", 0),
    (lambda: made((X, Y), classes="3"), "classes", "3"),
    (lambda: made((X, Y), classes=2.5), "classes", 2.5),
    (lambda: made((X, Y * 10**9)), "y_train", None),
    (lambda: made((X, Y), sizes=6), "sizes", 6),
    (lambda: made(lambda client: (X, Y), sizes=12, clients=[0] * 12), "clients", [0] * 12),
    (lambda: made((X, Y), test_clients=[0] * 12), "test_clients", None),
    (lambda: made(lambda client: (X, Y), sizes=12, classes=1), "test row 1", 1),
    (lambda: fl.FederatedDataset("mine", Items(lambda row: (X[row], 1)), (X, Y + 0.5)), "test labels", None),
    (lambda: made(Items(lambda row: ((1.0,) if row == 3 else (1.0, 2.0), 1))), "row 3 sample", (1.0,)),
    (lambda: made(Items(lambda row: (1.0 if row == 3 else (1.0, 2.0), 1))), "row 3 sample", 1.0),
    (lambda: made(lambda client: (X, Y), sizes=2.5, classes=3), "sizes", 2.5),
    (lambda: made(lambda client: (X, Y), sizes=np.int64(9), classes=3), "client 0: samples", 12),
    (
        lambda: fl.FederatedDataset.of_clients("mine", {"a": (X, Y), "b": (X, Y[:, None])}, (X, Y)),
        "client 'b'",
        None,
    ),
]


@pytest.mark.parametrize(("make", "field", "got"), OBJECTS)
def test_malformed_federated_dataset_is_refused(make: Callable[[], fl.FederatedDataset], field: str, got: Any) -> None:
    with refuses(f"dataset 'mine': {field}", got=got):
        divide_dataset(make(), DivisionSettings(Iid(), 2, seed=0))


@pytest.mark.parametrize(
    ("train", "field"),
    [
        ((X + 1j, Y), "samples"),
        ((X, Y + 1j), "labels"),
        ([(x + 1j, 1) for x in X], "row 0 sample"),
        (({"a": X + 1j}, Y), "samples"),
    ],
)
def test_error_about_complex_numbers_names_real_numbers(train: Any, field: str) -> None:
    with refuses(f"dataset 'mine': {field}", "real numbers"):
        divide_dataset(fl.FederatedDataset("mine", train, train), DivisionSettings(Iid(), 2, seed=0))


def test_client_names_that_mix_words_and_numbers_are_refused() -> None:
    clients = np.array([1, 2, 10] * 4)
    data = fl.FederatedDataset("mine", (X, Y), (X, Y), clients=clients, test_clients=["1", "2", "10"] * 4)
    with refuses("dataset 'mine': test_clients", "such as 1,", got="1"):
        divide_dataset(data, DivisionSettings(Natural(), 3, seed=0))


def test_empty_list_of_test_clients_is_refused() -> None:
    data = fl.FederatedDataset("mine", (X, Y), (X, Y), clients=["a", "b"] * 6, test_clients=[])
    with refuses("dataset 'mine': test_clients", "0 clients"):
        divide_dataset(data, DivisionSettings(Natural(), 2, seed=0))


def test_common_and_per_client_test_samples_together_are_refused() -> None:
    samples = {"a": (X, Y)}
    with refuses("dataset 'mine': test_of_clients"):
        fl.FederatedDataset.of_clients("mine", samples, (X, Y), test_of_clients=samples)


def test_number_of_samples_of_a_client_may_be_a_numpy_integer() -> None:
    data = made(lambda client: (X, Y), sizes=np.uint64(12), classes=3)
    assert data.own_clients is None
    assert divide_dataset(data, DivisionSettings(Iid(), 2, seed=0)).offsets.tolist() == [0, 12, 24]


def test_half_precision_tensors_become_float32() -> None:
    data = made((torch.from_numpy(X).bfloat16(), torch.from_numpy(Y)))
    x, _ = divide_dataset(data, DivisionSettings(Iid(), 1, seed=0)).client(0)
    assert x.dtype == np.float32


@pytest.mark.parametrize(("train", "field"), [({"x": X, "y": Y}, "train"), ("a.csv", "train"), ((X, Y, Y), "row 0")])
def test_samples_that_are_not_a_pair_are_refused_with_the_expected_form(train: Any, field: str) -> None:
    with refuses(f"dataset 'mine': {field}", "train=(x, y)"):
        divide_dataset(made(train), DivisionSettings(Iid(), 2, seed=0))


@pytest.mark.parametrize(
    ("rows", "objective", "field", "got"),
    [
        ("a,a,label\n1,2,0\n3,4,1\n", "classification", None, None),
        ("a,label\n1,0\n", "classification", None, None),
        ("a,label\n" + "1,0\n" * 9 + "1e300,1\n", "classification", "column 'a' line 11", 1e300),
        ("a,client,label\n" + "1,x,0\n" * 9 + "2,,1\n", "classification", "column 'client' line 11", None),
        ("a,client,y\n" + "1,x,0.5\n" * 9 + "2,z,inf\n", "regression", "column 'y' line 11, client 'z'", float("inf")),
    ],
)
def test_wrong_tables_are_refused(rows: str, objective: str, field: str | None, got: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(rows)
    targets = None if objective == "classification" else make_objective(objective).targets
    place = f"dataset: {path}"
    if field is not None:
        place = f"dataset {str(path)!r}: {field}"
    with refuses(place, got=got):
        load_dataset(str(path), None, targets)


def test_error_about_a_malformed_npy_file_names_the_file(tmp_path: Path) -> None:
    for name, array in {"x_train": np.float32(3), "y_train": Y, "x_test": X, "y_test": Y}.items():
        np.save(tmp_path / f"{name}.npy", array)
    with refuses(f"dataset: {tmp_path / 'x_train.npy'}", got=3.0):
        load_dataset(f"npy:{tmp_path}", None)
    (tmp_path / "x_train.npy").write_bytes(b"")
    with refuses(f"dataset: {tmp_path / 'x_train.npy'}"):
        load_dataset(f"npy:{tmp_path}", None)
    np.savez(tmp_path / "x.npz", X)
    (tmp_path / "x.npz").rename(tmp_path / "x_train.npy")
    with refuses(f"dataset: {tmp_path / 'x_train.npy'}", "archive"):
        load_dataset(f"npy:{tmp_path}", None)
    np.save(tmp_path / "x_train.npy", X)
    np.save(tmp_path / "clients_train.npy", np.zeros((12, 2), int))
    with refuses(f"dataset: {tmp_path / 'clients_train.npy'}", "[12, 2]"):
        load_dataset(f"npy:{tmp_path}", None)


def test_image_with_more_than_8_bits_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("I;16", (4, 4), 40_000).save(tmp_path / split / "a" / "0.png")
    with refuses(f"dataset: {tmp_path / 'train/a/0.png'}: image mode", got="I;16"):
        divide_dataset(load_dataset(f"folder:{tmp_path}", None), DivisionSettings(Iid(), 1, seed=0))


class Odd(fl.Objective):
    def __init__(self, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._loss = loss

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self._loss(outputs.mean(1))


def test_objective_with_unusable_losses_or_metrics_is_refused() -> None:
    outputs, targets = torch.ones(2, 3), torch.tensor([0, 1])
    with refuses("objective: Odd loss", "nan"):
        describe_misfit(Odd(lambda losses: losses * float("nan")), outputs, targets, 3)
    with refuses("objective: Odd loss", "gradient"):
        describe_misfit(Odd(torch.Tensor.detach), outputs, targets, 3)
    assert describe_misfit(Odd(lambda losses: losses), outputs, targets, 3) is None
    # The samples are wrong, not the model.
    assert describe_misfit(Odd(lambda losses: losses), outputs * float("nan"), targets, 3) is None
    # Two samples must not give a loss for each pair of samples.
    with refuses("objective: Odd losses", "squeeze"):
        describe_misfit(Odd(lambda losses: losses[:, None] - losses), outputs, targets, 3)
    with refuses("objective: Odd losses", "each sample"):
        describe_misfit(Odd(torch.mean), outputs, targets, 3)
    assert describe_misfit(Odd(lambda losses: losses[:, None].expand(-1, 2)), outputs, targets, 3) is None
    unmeasured = type("Unmeasured", (Odd,), {"better": {"coverd": "max"}})
    with refuses("objective: Unmeasured.better", got=["coverd"]):
        describe_misfit(unmeasured(lambda losses: losses), outputs, targets, 3)
    for name in (1, "loss", "client_mean", "step"):
        named = type("Named", (Odd,), {"better": {name: "max"}})
        with refuses("objective: Named.better", str(name)):
            make_objective(named(lambda losses: losses))
    counting = type("Counting", (Odd,), {"measured": lambda self, outputs, targets: {"count": targets}})
    with refuses("objective: Counting measured", "count"):
        describe_misfit(counting(lambda losses: losses), outputs, targets, 3)
    wrong = type("Listed", (Odd,), {"better": ["r2"]})
    with refuses("objective: Listed.better", got=["r2"]):
        make_objective(wrong(lambda losses: losses))
