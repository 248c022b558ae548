"""Data that are nearly right: one sentence each, before anything is read at length."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedraa as fl
from fedraa.data import Dealing, Iid, deal, load_dataset
from fedraa.objectives import make_objective, misfit

X, Y = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3


class Items:
    """A data set of torch's kind."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self._item = item

    def __len__(self) -> int:
        return 12

    def __getitem__(self, row: int) -> Any:
        return self._item(row)


def made(train: Any, **more: Any) -> fl.FederatedDataset:
    return fl.FederatedDataset("mine", train, (X, Y), **more)


OBJECTS: list[tuple[Callable[[], fl.FederatedDataset], str]] = [
    (lambda: made(Items(lambda row: [][row])), "row 0: IndexError: list index out of range"),
    (
        lambda: made(Items(lambda row: ({"a" if row != 3 else "b": X[row]}, 1))),
        r"the sample of row 3 has \['b'\], that of row 0 \['a'\]; they must be alike",
    ),
    (lambda: made((X[:0], Y[:0])), "train has no sample"),
    (lambda: made((X, Y), clients=7), "clients is int; give a number or a word for each row"),
    (lambda: made((X, Y), clients="abcdefghijkl"), "clients is str"),
    (lambda: made((X, Y), clients=[[1]] * 12), "clients has list"),
    (lambda: made((X, Y), classes=0), "classes is 0; it must be how many there are"),
    (lambda: made(lambda client: (X, Y), sizes=2.5, classes=3), r"sizes is float64 \[\]; it must be one whole number"),
    (lambda: made(lambda client: (X, Y), sizes=np.int64(9), classes=3), "client 0: got 12 samples; sizes says 9"),
    (
        lambda: fl.FederatedDataset.of_clients("mine", {"a": (X, Y), "b": (X, Y[:, None])}, (X, Y)),
        r"labels of client 'b' are \[1\], others \[\]",
    ),
]


@pytest.mark.parametrize(("given", "said"), OBJECTS)
def test_objects(given: Callable[[], fl.FederatedDataset], said: str) -> None:
    with pytest.raises(ValueError, match=f"^dataset 'mine': {said}"):
        deal(given(), Dealing(Iid(), 2, seed=0))


@pytest.mark.parametrize(
    ("rows", "objective", "said"),
    [
        ("a,a,label\n1,2,0\n3,4,1\n", "classification", "has two columns 'a'"),
        ("a,label\n1,0\n", "classification", "has one row; there must be some to train on"),
        ("a,label\n" + "1,0\n" * 9 + "1e300,1\n", "classification", r"column 'a' has '1e\+300' in row 10;"),
        (
            "a,client,label\n" + "1,x,0\n" * 9 + "2,,1\n",
            "classification",
            "column 'client' is empty in 1 of 10 rows, first in row 10;",
        ),
        ("a,client,y\n" + "1,x,0.5\n" * 9 + "2,z,inf\n", "regression", "column 'y' has 'inf' in row 10, client 'z';"),
    ],
)
def test_tables(rows: str, objective: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(rows)
    targets = None if objective == "classification" else make_objective(objective).targets
    with pytest.raises(ValueError, match=rf"t\.csv': (.*t\.csv )?{said}"):
        load_dataset(str(tmp_path / "t.csv"), None, targets)


def test_arrays_that_are_numbers_and_owners_of_two_dimensions(tmp_path: Path) -> None:
    for name, array in {"x_train": np.float32(3), "y_train": Y, "x_test": X, "y_test": Y}.items():
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(ValueError, match=r"x_train\.npy is one number; it must be an array of rows"):
        load_dataset(f"npy:{tmp_path}", None)
    np.save(tmp_path / "x_train.npy", X)
    np.save(tmp_path / "clients_train.npy", np.zeros((12, 2), int))
    with pytest.raises(ValueError, match=r"clients_train\.npy has shape \(12, 2\)"):
        load_dataset(f"npy:{tmp_path}", None)


def test_images_of_more_than_eight_bits_are_not_clipped_in_silence(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("I;16", (4, 4), 40_000).save(tmp_path / split / "a" / "0.png")
    with pytest.raises(ValueError, match=r"0\.png cannot be read as an image \(I;16, more than 8 bits for a colour"):
        deal(load_dataset(f"folder:{tmp_path}", None), Dealing(Iid(), 1, seed=0))


class Odd(fl.Objective):
    def __init__(self, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._loss = loss

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self._loss(outputs.mean(1))


def test_losses_that_teach_nothing() -> None:
    outputs, targets = torch.ones(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"^objective: Odd gave the loss nan for .* of finite numbers$"):
        misfit(Odd(lambda losses: losses * float("nan")), outputs, targets, 3)
    with pytest.raises(ValueError, match=r"^objective: Odd gave a loss of which there is no gradient"):
        misfit(Odd(torch.Tensor.detach), outputs, targets, 3)
    assert misfit(Odd(lambda losses: losses), outputs, targets, 3) is None
    assert misfit(Odd(lambda losses: losses), outputs * float("nan"), targets, 3) is None  # the samples' fault
    wrong = type("Listed", (Odd,), {"better": ["r2"]})
    with pytest.raises(ValueError, match=r"^objective: Listed has better = \['r2'\]; takes a dict of names"):
        make_objective(wrong(lambda losses: losses))
