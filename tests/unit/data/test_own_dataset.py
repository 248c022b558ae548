"""User-defined data sets as objects and as functions: their conversion, and the errors about malformed ones."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses
from torch.utils.data import TensorDataset

import fedraa as fl
from fedraa.cli.main import main
from fedraa.data import as_dataset, load_dataset

RNG = np.random.default_rng(0)
X, X_TEST = RNG.normal(size=(40, 6)).astype(np.float32), RNG.normal(size=(12, 6)).astype(np.float32)
Y, Y_TEST = np.arange(40) % 3, np.arange(12) % 3


def dataset(**change: Any) -> Any:
    return fl.Dataset(
        **{"name": "mine", "x_train": X, "y_train": Y, "x_test": X_TEST, "y_test": Y_TEST, "classes": 3} | change
    )


def made(data_dir: Path | None = None) -> fl.Dataset:
    return dataset(name=f"in {data_dir}")  # type: ignore[no-any-return]


def sized(rows: int = 40) -> fl.Dataset:
    return dataset(x_train=X[:rows], y_train=Y[:rows])  # type: ignore[no-any-return]


def nothing() -> None: ...


def broken() -> fl.Dataset:
    raise FileNotFoundError("records.csv")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"y_train": Y.astype(np.int32), "y_test": Y_TEST.astype(np.uint8)},
        {"x_train": X.astype(np.float64), "x_test": X_TEST.astype(np.float16).astype(np.float64)},
        {"x_train": torch.from_numpy(X), "y_train": torch.from_numpy(Y), "y_test": torch.tensor(Y_TEST)},
        {"x_train": X.tolist(), "y_train": Y.tolist(), "x_test": X_TEST.tolist(), "y_test": tuple(Y_TEST.tolist())},
        {"x_train": [torch.tensor(row) for row in X], "y_train": [torch.tensor(label) for label in Y]},
        {"x_train": np.asfortranarray(X), "y_train": np.repeat(Y, 2)[::2], "classes": np.int64(3)},
        {"x_train": X.astype(">f4"), "y_train": Y.astype(">i2")},
        {"x_train": torch.from_numpy(X).requires_grad_()},
    ],
)
def test_convertible_arrays_are_converted_to_the_expected_types(change: dict[str, Any]) -> None:
    converted = as_dataset(dataset(**change))
    for x, right in ((converted.x_train, X), (converted.y_train, Y), (converted.y_test, Y_TEST)):
        assert np.array_equal(x, right)
        assert x.flags.c_contiguous
        assert x.flags.writeable
        assert x.dtype == right.dtype
        assert x.dtype.isnative
    assert converted.x_test == pytest.approx(X_TEST, abs=2e-3)
    assert (converted.name, converted.classes, type(converted.classes)) == ("mine", 3, int)


def test_arrays_of_the_expected_types_are_not_copied() -> None:
    converted, right = as_dataset(dataset()), dataset()
    assert all(getattr(converted, name) is getattr(right, name) for name in ("x_train", "y_train", "x_test", "y_test"))


def test_two_dimensional_integers_are_read_as_tokens_but_bytes_are_not() -> None:
    tokens = RNG.integers(0, 9, (40, 6), np.int32)
    assert as_dataset(dataset(x_train=tokens, x_test=tokens[:12])).x_train.dtype == np.int64
    assert as_dataset(dataset(x_train=tokens.astype(np.uint8), x_test=X_TEST)).x_train.dtype == np.float32


def short(name: str) -> dict[str, Any]:
    return {name: {"y_train": Y, "x_test": X_TEST, "y_test": Y_TEST}[name][:-1]}


def holding(value: float) -> dict[str, Any]:
    x = X.astype(np.float64)
    x[3, 2] = value
    return {"x_train": x}


@pytest.mark.parametrize(
    ("change", "field", "shown"),
    [
        (short("y_train"), "y_train", "[39]"),
        (short("x_test"), "y_test", "[12]"),
        ({"y_train": Y + 1}, "y_train", "got 3;"),
        ({"y_test": Y_TEST - 1}, "y_test row 0", "got -1;"),
        ({"classes": 2}, "y_train", "got 2;"),
        ({"classes": -1}, "classes", "got -1;"),
        ({"classes": False}, "classes", "got False;"),
        ({"classes": 3.0}, "classes", "got 3.0;"),
        ({"y_train": Y.astype(float)}, "y_train", "float64 [40]"),
        ({"y_train": np.eye(3)[Y]}, "y_train", "float64 [40, 3]"),
        (holding(np.nan), "x_train row 3 of client 0", "float32"),
        (holding(1e300), "x_train row 3 of client 0", "float32"),
        ({"x_test": X_TEST[:, :5]}, "x_test", "[12, 5]"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "x_train", "[0, 6]"),
        ({"x_train": X[:, 0]}, "x_train", "[40]"),
        ({"x_train": X.astype(complex)}, "x_train", "complex"),
        ({"x_train": [[1.0, 2.0], [3.0]]}, "x_train", "array element"),
        ({"x_train": [torch.zeros(2), torch.zeros(3)]}, "x_train", "stack expects each"),
        ({"x_train": TensorDataset(torch.zeros(40, 6))}, "x_train", "a TensorDataset"),
        ({"y_test": None}, "y_test", "got None;"),
        ({"x_train": np.full((40, 6), -1), "x_test": np.ones((12, 6), int)}, "x_train", "got -1;"),
    ],
)
def test_wrong_arrays_are_refused_before_the_start(
    change: dict[str, Any], field: str, shown: str, tmp_path: Path
) -> None:
    with refuses(f"dataset 'mine': {field}", shown):
        fl.run(fl.Experiment(clients=2, engine="local", out=tmp_path / "run"), dataset=dataset(**change))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "field", "shown"),
    [
        (TensorDataset(torch.zeros(4, 6), torch.zeros(4)), "dataset", "fedraa.FederatedDataset(name, train="),
        ((X, Y), "dataset", "fedraa.Dataset(name, x_train, "),
        ({"x_train": X}, "dataset", "fedraa.Dataset(name, x_train, "),
        (pd.DataFrame(X), "dataset", "to_csv"),
        # The name is missing.
        (fl.Dataset(X, Y, X, Y, 2), "dataset name", "fedraa.Dataset(name, x_train, "),  # type: ignore[arg-type]
    ],
)
def test_object_that_is_not_a_data_set_is_refused_with_the_form_that_works(data: Any, field: str, shown: str) -> None:
    with refuses(field, shown):
        fl.run(fl.Experiment(clients=2, engine="local"), dataset=data)


@pytest.mark.parametrize(
    ("name", "folder", "expected"),
    [("made", Path("somewhere"), "in somewhere"), ("sized", None, "mine"), ("sized(rows=20)", None, "mine")],
)
def test_function_may_make_the_data_set(name: str, folder: Path | None, expected: str) -> None:
    data = load_dataset(f"{__name__}:{name}", folder)
    assert data.name == expected
    assert len(data.x_train) == (20 if "20" in name else 40)


def test_data_dir_is_refused_for_a_function_without_that_argument() -> None:
    with refuses("data_dir", ":sized", got=Path("somewhere")):
        load_dataset(f"{__name__}:sized", Path("somewhere"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (f"{__name__}:nothing", "fedraa.Dataset"),
        (f"{__name__}:broken", "FileNotFoundError: records.csv; correct broken (test_own_dataset.py, line "),
        ("digit", "digits?"),
    ],
)
def test_name_that_yields_no_data_set_is_refused(name: str, shown: str) -> None:
    with refuses("dataset", shown):
        load_dataset(name, None)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (f"{__name__}:absent", f"{__name__}:absent"),
        (f"{__name__}:sized(columns=1)", "columns"),
        ("absent_ext:load", "'absent_ext'"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(name: str, shown: str) -> None:
    with pytest.raises(ValueError, match=f"^dataset: .*{shown}"):
        load_dataset(name, None)


def test_tensors_and_arrays_give_the_same_model(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"clients": 3, "engine": "local", "updates": 4, "quiet": True, "hidden": (8,)}
    tensors = dataset(x_train=torch.tensor(X, dtype=torch.float64), y_train=torch.tensor(Y, dtype=torch.int32))
    of_tensors, of_arrays = (
        fl.run(fl.Experiment(**flags, out=tmp_path / name), dataset=data)
        for name, data in (("tensors", tensors), ("arrays", dataset()))
    )
    assert of_tensors.summary["model_sha256"] == of_arrays.summary["model_sha256"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs a command beside a user's module and returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # Another test may have imported its own my_ext.
    monkeypatch.delitem(sys.modules, "my_ext", raising=False)
    (tmp_path / "my_ext.py").write_text(
        "import numpy as np, fedraa as fl\n"
        "def load(data_dir):\n"
        "    x, y = np.random.default_rng(1).normal(size=(50, 4)), np.arange(50) % 2\n"
        "    return fl.Dataset(f'from {data_dir}', x, y, x[:10], y[:10], classes=2)\n"
        "def halves(labels, clients, rng):\n"
        "    return np.array_split(rng.permutation(len(labels) // 2), clients)\n"
        "def sure(outputs, labels):\n"
        "    return outputs.softmax(1).max(1).values\n"
        "def devices(clients, rng):\n"
        "    return {'compute': 1 + np.arange(clients), 'latency': rng.random(clients)}\n"
    )
    flags = [
        "--clients",
        "3",
        "--engine",
        "local",
        "--updates",
        "6",
        "--hidden",
        "4",
        "--fragments",
        "2",
        "--quiet",
        "--out",
    ]

    return lambda *words: main(["run", *flags, str(tmp_path / "run"), *words])


def test_command_line_accepts_user_defined_data_partition_metric_and_devices(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "--dataset my_ext:load --data-dir here --partition my_ext:halves --metrics my_ext:sure"
    assert command(*own.split(), "--compute", "my_ext:devices") == 0
    assert capsys.readouterr().err == ""
    history = fl.History(tmp_path / "run")
    assert 0.5 < history.summary["metrics"]["sure"] <= 1  # type: ignore[index]
    # These are half of the 50 rows.
    assert history.config["resolved"]["samples"] == [9, 8, 8]
    assert history.config["resolved"]["compute"] == [1.0, 2.0, 3.0]
    assert history.config["experiment"]["compute"] == "my_ext:devices"


def test_command_line_refuses_a_wrong_data_set_function_in_one_line(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--dataset", "my_ext:halves") == 2
    said = capsys.readouterr().err
    assert re.match(r"fedraa: dataset: halves .*TypeError: ", said)
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()
