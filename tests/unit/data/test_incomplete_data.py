"""Masked values, missing labels and classes that nobody counted."""

from typing import Any

import numpy as np
import pytest

import fedraa as fl
from fedraa.data import Dealing, Iid, deal
from fedraa.data.check import as_dataset

pytestmark = pytest.mark.filterwarnings("error")

X, Y = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3
MASKED = np.ma.array(X, mask=np.arange(60).reshape(12, 5) == 21)
MASKED_Y = np.ma.array(Y, mask=np.arange(12) == 4)
NAN_Y = np.where(np.arange(12) == 3, np.nan, Y)


class MaskedRows(fl.Rows):
    """Rows of an array with a mask, read a few at a time."""

    def __len__(self) -> int:
        return 12

    def read(self, rows: Any) -> tuple[Any, Any]:
        return MASKED[rows], Y[rows]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x_train": MASKED}, "x_train row 4 is masked; fill it in"),
        ({"x_test": MASKED}, "x_test row 4 is masked; fill it in"),
        ({"x_train": list(MASKED)}, "x_train row 4 is masked"),
        ({"y_train": MASKED_Y}, "y_train row 4 is masked"),
        ({"y_train": list(MASKED_Y)}, "y_train row 4 is masked"),
        ({"x_train": {"a": MASKED}, "x_test": {"a": X}}, r"x_train\['a'\] row 4 is masked"),
        ({"x_train": (X, MASKED), "x_test": (X, X)}, r"x_train\[1\] row 4 is masked"),
        ({"y_train": NAN_Y}, "y_train row 3 is NaN"),
        ({"y_test": NAN_Y.astype(np.float32)}, "y_test row 3 is NaN"),
        ({"y_train": np.where(np.arange(12) == 3, np.inf, Y)}, "y_train is float64"),
        ({"x_train": X > 0, "x_test": X > 0}, r"x_train holds bool; .*x\.astype\('float32'\)"),
        ({"y_test": Y + 1}, "y_test holds label 3, but classes is 3"),
        ({"y_train": Y + 10}, "y_train goes up to 12 with 12 samples"),
    ],
)
def test_arrays(change: dict[str, Any], said: str) -> None:
    arrays: dict[str, Any] = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}
    with pytest.raises(ValueError, match=f"^dataset 'mine': {said}"):
        as_dataset(fl.Dataset("mine", **(arrays | change)))


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ((MASKED, Y), "train x row 4 is masked"),
        (({"a": MASKED}, Y), "train x row 4 is masked"),
        ((X, MASKED_Y), "train y row 4 is masked"),
        (list(zip(MASKED, Y, strict=True)), "sample of row 4 .*is masked"),
        (MaskedRows(), "client 0: the samples' row [0-9]+ is masked"),
        ((X, NAN_Y), "row 3 is NaN"),
    ],
)
def test_samples_of_clients(train: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^dataset 'mine': .*{said}"):
        deal(fl.FederatedDataset("mine", train, (X, Y)), Dealing(Iid(), 1, seed=0))


def test_a_mask_that_hides_nothing_is_no_mask() -> None:
    made = as_dataset(fl.Dataset("mine", np.ma.array(X), np.ma.array(Y), X, Y))
    assert np.array_equal(made.x_train, X)
    assert not isinstance(made.x_train, np.ma.MaskedArray)


def test_classes_are_counted() -> None:
    assert as_dataset(fl.Dataset("mine", X, Y, X, Y)).classes == 3
    assert as_dataset(fl.Dataset("mine", X, Y, X, Y, classes=5)).classes == 5
