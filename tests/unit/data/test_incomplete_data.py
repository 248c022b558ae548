"""Masked values, missing labels and data sets without a number of classes."""

from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.data import DivisionSettings, divide_dataset
from fedraa.data.check import as_dataset
from fedraa.data.partition.iid import Iid

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
    ("change", "field", "shown"),
    [
        ({"x_train": MASKED}, "x_train row 4", "masked"),
        ({"x_test": MASKED}, "x_test row 4", "masked"),
        ({"x_train": list(MASKED)}, "x_train row 4", "masked"),
        ({"y_train": MASKED_Y}, "y_train row 4", "masked"),
        ({"y_train": list(MASKED_Y)}, "y_train row 4", "masked"),
        ({"x_train": {"a": MASKED}, "x_test": {"a": X}}, "x_train['a'] row 4", "masked"),
        ({"x_train": (X, MASKED), "x_test": (X, X)}, "x_train[1] row 4", "masked"),
        ({"y_train": NAN_Y}, "y_train row 3", "nan"),
        ({"y_test": NAN_Y.astype(np.float32)}, "y_test row 3", "nan"),
        ({"y_train": np.where(np.arange(12) == 3, np.inf, Y)}, "y_train", "float64"),
        ({"x_train": X > 0, "x_test": X > 0}, "x_train", "x.astype('float32')"),
        ({"x_train": np.array(["two words"] * 12), "x_test": np.array(["a"] * 12)}, "x_train", "[samples, length]"),
        ({"y_test": Y + 1}, "y_test", "3"),
        ({"y_train": Y + 10}, "y_train", "12"),
    ],
)
def test_array_with_masked_or_wrong_values_is_refused(change: dict[str, Any], field: str, shown: str) -> None:
    arrays: dict[str, Any] = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}
    with refuses(f"dataset 'mine': {field}", shown):
        as_dataset(fl.Dataset("mine", **(arrays | change)))


@pytest.mark.parametrize(
    ("train", "field"),
    [
        ((MASKED, Y), "train x row 4"),
        (({"a": MASKED}, Y), "train x row 4"),
        ((X, MASKED_Y), "train y row 4"),
        (list(zip(MASKED, Y, strict=True)), "row 4 sample: item row 1"),
        (MaskedRows(), "client 0: samples row 3"),
        ((X, NAN_Y), "labels row 3"),
    ],
)
def test_masked_or_nan_samples_of_clients_are_refused(train: Any, field: str) -> None:
    with refuses(f"dataset 'mine': {field}"):
        divide_dataset(fl.FederatedDataset("mine", train, (X, Y)), DivisionSettings(Iid(), 1, seed=0))


def test_array_with_an_empty_mask_is_accepted_as_a_plain_array() -> None:
    converted = as_dataset(fl.Dataset("mine", np.ma.array(X), np.ma.array(Y), X, Y))
    assert np.array_equal(converted.x_train, X)
    assert not isinstance(converted.x_train, np.ma.MaskedArray)


def test_classes_are_counted_if_the_data_set_does_not_state_them() -> None:
    assert as_dataset(fl.Dataset("mine", X, Y, X, Y)).classes == 3
    assert as_dataset(fl.Dataset("mine", X, Y, X, Y, classes=5)).classes == 5
