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
SAID = r"feature 1 .* 1\.7e\+09 .* 99, .*float32 .* 2 of 100 "


def sentences(function: Any, *args: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    assert all(item.category is RunWarning for item in caught)
    return [str(item.message) for item in caught]


def test_arrays_name_the_feature() -> None:
    with pytest.warns(RunWarning, match=f"^x_train: {SAID}.*; subtract its mean"):
        as_dataset(fl.Dataset("mine", TIMES, Y, PLAIN, Y, classes=2))
    assert len(sentences(as_dataset, fl.Dataset("mine", TIMES, Y, PLAIN, Y, classes=2))) == 1
    assert sentences(as_dataset, fl.Dataset("mine", TIMES - TIMES[0], Y, PLAIN, Y, classes=2)) == []


def test_several_inputs_name_the_input() -> None:
    inputs = {"a": TIMES}, {"a": PLAIN}
    with pytest.warns(RunWarning, match=rf"^x_train\['a'\]: {SAID}"):
        as_dataset(fl.Dataset("mine", inputs[0], Y, inputs[1], Y, classes=2))


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("read_by_row", [False, True])
def test_samples_of_clients(*, read_by_row: bool, standardise: bool) -> None:
    train: Any = [(x, int(y)) for x, y in zip(TIMES, Y, strict=True)] if read_by_row else (TIMES, Y)
    data = fl.FederatedDataset("mine", train, (PLAIN, Y))
    warned = sentences(divide_dataset, data, DivisionSettings(Iid(), 2, seed=0, standardise=standardise))
    assert len(warned) == 1
    assert re.search(r"feature 1 .* 1\.7e\+09 .*float32 ", warned[0])


@pytest.mark.parametrize("standardise", [False, True])
def test_samples_that_a_function_makes(*, standardise: bool) -> None:
    data = fl.FederatedDataset("mine", lambda client: (TIMES, Y), (PLAIN, Y), sizes=100, classes=2)
    warned = sentences(divide_dataset, data, DivisionSettings(Iid(), 2, seed=0, standardise=standardise))
    assert len(warned) == 1
    assert re.search(r"feature 1 .* 1\.7e\+09 .*float32 ", warned[0])


def test_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=TIMES, y_train=Y, x_test=PLAIN, y_test=Y)
    with pytest.warns(RunWarning, match=f"^x_train: {SAID}"):
        load_dataset(str(tmp_path / "a.npz"))
    rows = "".join(f"{a},{b:.0f},{y}\n" for (a, b), y in zip(TIMES, Y, strict=True))
    (tmp_path / "a.csv").write_text(f"a,when,label\n{rows}")
    warned = [text for text in sentences(load_dataset, str(tmp_path / "a.csv")) if "float32" in text]
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
def test_which_values_warn(x: Any, count: int) -> None:
    assert len(sentences(warn_lost_digits, "x", x)) == count
