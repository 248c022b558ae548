"""Warnings about features that lose their differences in float32."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedraa as fl
from fedraa.data import DivisionSettings, divide_dataset, load_dataset
from fedraa.data.check import as_dataset
from fedraa.data.partition.iid import Iid
from fedraa.data.precision import warn_lost_digits
from fedraa.errors import RunWarning

Y = np.arange(100) % 2
PLAIN = np.random.default_rng(0).normal(size=(100, 2))
# Neighbours of float32 are 128 apart here, so 100 seconds are rounded to two values.
TIMES = np.stack([PLAIN[:, 0], 1_700_000_000.0 + np.arange(100)], axis=1)
WARNING = r"feature 1 .* 1\.7e\+09 .* 99, .*float32 .* 2 of 100 "


def warning_texts(function: Any, *args: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    assert all(item.category is RunWarning for item in caught)
    return [str(item.message) for item in caught]


def test_warning_about_arrays_names_the_feature() -> None:
    with pytest.warns(RunWarning, match=f"^x_train: {WARNING}.*; subtract its mean"):
        as_dataset(fl.Dataset("mine", TIMES, Y, PLAIN, Y, classes=2))
    assert len(warning_texts(as_dataset, fl.Dataset("mine", TIMES, Y, PLAIN, Y, classes=2))) == 1
    assert warning_texts(as_dataset, fl.Dataset("mine", TIMES - TIMES[0], Y, PLAIN, Y, classes=2)) == []


def test_warning_about_several_inputs_names_the_input() -> None:
    inputs = {"a": TIMES}, {"a": PLAIN}
    with pytest.warns(RunWarning, match=rf"^x_train\['a'\]: {WARNING}"):
        as_dataset(fl.Dataset("mine", inputs[0], Y, inputs[1], Y, classes=2))


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("read_by_row", [False, True])
def test_samples_of_clients_cause_one_warning(*, read_by_row: bool, standardise: bool) -> None:
    train: Any = [(x, int(y)) for x, y in zip(TIMES, Y, strict=True)] if read_by_row else (TIMES, Y)
    data = fl.FederatedDataset("mine", train, (PLAIN, Y))
    warned = warning_texts(divide_dataset, data, DivisionSettings(Iid(), 2, seed=0, standardise=standardise))
    assert len(warned) == 1
    assert re.search(r"feature 1 .* 1\.7e\+09 .*float32 ", warned[0])


@pytest.mark.parametrize("standardise", [False, True])
def test_generated_samples_cause_one_warning(*, standardise: bool) -> None:
    data = fl.FederatedDataset("mine", lambda client: (TIMES, Y), (PLAIN, Y), sizes=100, classes=2)
    warned = warning_texts(divide_dataset, data, DivisionSettings(Iid(), 2, seed=0, standardise=standardise))
    assert len(warned) == 1
    assert re.search(r"feature 1 .* 1\.7e\+09 .*float32 ", warned[0])


def test_warning_about_a_file_names_the_feature_or_column(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=TIMES, y_train=Y, x_test=PLAIN, y_test=Y)
    with pytest.warns(RunWarning, match=f"^x_train: {WARNING}"):
        load_dataset(str(tmp_path / "a.npz"))
    rows = "".join(f"{a},{b:.0f},{y}\n" for (a, b), y in zip(TIMES, Y, strict=True))
    (tmp_path / "a.csv").write_text(f"a,when,label\n{rows}")
    warned = [text for text in warning_texts(load_dataset, str(tmp_path / "a.csv")) if "float32" in text]
    assert len(warned) == 1
    assert re.match(r"dataset '.*a\.csv': column 'when' .* 1\.7e\+09 ", warned[0])


@pytest.mark.parametrize(
    ("x", "count"),
    [
        (TIMES.astype(np.float32), 0),
        (np.full((100, 1), 0.1), 0),
        (np.full((100, 1), 0.1) + np.arange(100)[:, None] % 2 * 1e-17, 0),
        (TIMES[:, 1:].astype(np.longdouble), 1),
        (np.where(PLAIN > 2, np.nan, PLAIN), 0),
        (np.full((100, 1), np.nan), 0),
        (np.full((100, 1), 1e300), 0),
        (PLAIN * 1e-60, 1),
        ((2**31 - 1 - np.arange(300)).astype(np.int32).reshape(100, 1, 3), 1),
        (np.arange(300).astype(np.int32).reshape(100, 1, 3), 0),
        (np.zeros((0, 3)), 0),
        (PLAIN + 1000, 0),
    ],
)
def test_values_warn_only_if_float32_loses_their_differences(x: Any, count: int) -> None:
    assert len(warning_texts(warn_lost_digits, "x", x)) == count
