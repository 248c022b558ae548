"""Data sets of torch and Hugging Face in many forms: their samples, or an error that shows the form that works."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from refusals import refuses
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

import fedraa as fl
from fedraa.data import DivisionSettings, as_dataset, divide_dataset
from fedraa.data.dataset import training_type
from fedraa.data.partition.iid import Iid
from fedraa.data.sources.rows import as_rows
from fedraa.data.transforms import Transforms
from fedraa.models.raw_input import RawInputModel

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
Y = np.arange(12) % 2
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


def read(data: Any, **columns: str) -> tuple[Any, Any]:
    rows = as_rows("train", data, columns.get("input", "image"), columns.get("target", "label"))
    x, y = rows.read(np.arange(len(rows)))
    np.testing.assert_array_equal(rows.labels(), y)
    return x, y


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (lambda: TENSORS, range(12)),
        (lambda: Subset(TENSORS, [3, 5]), [3, 5]),
        (lambda: ConcatDataset([TENSORS, TENSORS]), [*range(12), *range(12)]),
        (lambda: list(zip(X, Y, strict=True)), range(12)),
        (lambda: list(zip(X, Y, strict=True))[:2], range(2)),
        (lambda: (pd.DataFrame(X), pd.Series(Y)), range(12)),
        (lambda: (torch.from_numpy(X), Y.tolist()), range(12)),
    ],
)
def test_every_supported_form_of_data_gives_its_samples(make: Callable[[], Any], places: Any) -> None:
    x, y = read(make())
    np.testing.assert_array_equal(x, X[list(places)])
    np.testing.assert_array_equal(y, Y[list(places)])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


class SizedStream(Stream):
    def __len__(self) -> int:
        return 12


@pytest.mark.parametrize(
    ("make", "field", "hint"),
    [
        (lambda: DataLoader(TENSORS), "train", "loader.dataset"),
        (lambda: (DataLoader(TENSORS), DataLoader(TENSORS)), "train", "(x, y)"),
        (Stream, "train", "list(...)"),
        (SizedStream, "train", "list(...)"),
        (lambda: zip(X, Y, strict=True), "train", "list(...)"),
        (lambda: (pair for pair in zip(X, Y, strict=True)), "train", "list(...)"),
        (lambda: pd.DataFrame(X), "train", "to_numpy"),
        (lambda: {"train": TENSORS, "test": TENSORS}, "train", "train=data['train']"),
        (lambda: [(x, y, 0) for x, y in zip(X, Y, strict=True)], "row 0", "pair"),
        (lambda: [{"image": x, "label": y} for x, y in zip(X, Y, strict=True)], "row 0", "pair"),
        (lambda: [(x, "ab"[y]) for x, y in zip(X, Y, strict=True)], "row 0 label", "numpy.unique"),
        (lambda: (X, np.array(["a", "b"])[Y]), "labels", "numpy.unique(y, return_inverse=True)"),
        (lambda: (X, np.eye(2)[Y]), "labels", "argmax"),
        (lambda: (X, Y[:, None]), "labels", "ravel"),
        (lambda: (X, Y * 1.0), "labels", "astype(int)"),
        (lambda: (X, X[:, 0]), "labels", "regression"),
        (lambda: [(Image.new("I;16", (4, 4), 40_000), 0)] * 4, "row 0 sample: image mode", "8 bits"),
        (lambda: [(Image.new(mode, (4, 4)), 0) for mode in ("RGB", "L")] * 4, "row 1 sample", "convert('RGB')"),
    ],
)
def test_data_in_another_form_are_refused_with_the_form_that_works(
    make: Callable[[], Any], field: str, hint: str
) -> None:
    with refuses(f"dataset 'mine': {field}", hint) as caught:
        divide_dataset(fl.FederatedDataset("mine", make(), (X, Y)), DivisionSettings(Iid(), 2, seed=0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "field", "hint"),
    [
        ({"y_train": np.array(["a", "b"])[Y]}, "y_train", "numpy.unique(y, return_inverse=True)"),
        ({"y_train": Y * 1.0}, "y_train", "astype(int)"),
        ({"x_train": -np.ones((12, 5), int), "x_test": np.ones((12, 5), int)}, "x_train", "astype('float32')"),
    ],
)
def test_arrays_of_other_types_are_refused_with_the_conversion(change: dict[str, Any], field: str, hint: str) -> None:
    arrays: dict[str, Any] = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y} | change
    with refuses(f"dataset 'mine': {field}", hint):
        as_dataset(fl.Dataset("mine", **arrays, classes=2))


def test_error_about_integer_features_shows_the_conversion() -> None:
    x = np.arange(60).reshape(12, 5)
    with pytest.raises(ValueError, match=r"model 'mlp'.*astype\('float32'\)"):
        fl.run(dataset=fl.Dataset("mine", x, Y, x, Y, 2), method="fedavg", rounds=1, clients=2, engine="local")


class Formatted:
    """A stand-in for a table of Hugging Face, so that its formats are tested without the package."""

    column_names = ("image", "label")
    features: tuple[str, ...] = ()

    def __init__(self, kind: str | None) -> None:
        self.format = {"type": kind}

    def __len__(self) -> int:
        return 12

    def with_format(self, kind: str | None) -> "Formatted":
        return Formatted(kind)

    def __getitem__(self, what: Any) -> Any:
        columns: dict[str, Any] = {"image": X.tolist(), "label": Y.tolist()}
        if self.format["type"] == "torch":
            columns = {name: torch.tensor(values) for name, values in columns.items()}
        if self.format["type"] == "custom":
            columns["label"] = [1 - label for label in columns["label"]]
        if isinstance(what, str):
            return columns[what] if self.format["type"] != "custom" else Y.tolist()
        if isinstance(what, int):
            return {name: values[what] for name, values in columns.items()}
        return {name: [values[row] for row in what] for name, values in columns.items()}


@pytest.mark.parametrize("kind", [None, "torch"])
def test_formatted_tables_give_the_same_samples(kind: str | None) -> None:
    x, y = read(Formatted(kind))
    np.testing.assert_array_equal(x, np.array(X.tolist()))
    np.testing.assert_array_equal(y, Y)


def test_labels_of_a_custom_table_format_come_from_the_formatted_rows() -> None:
    _, y = read(Formatted("custom"))
    np.testing.assert_array_equal(y, 1 - Y)


def hugging_face() -> Any:
    return pytest.importorskip("datasets", reason="the extra huggingface is not installed")


@pytest.mark.parametrize("kind", [None, "torch", "numpy", "pandas", "arrow"])
def test_hugging_face_tables_give_the_same_samples_in_every_format(kind: str | None) -> None:
    table = hugging_face().Dataset.from_dict({"image": X.tolist(), "label": Y.tolist()})
    x, y = read(table.with_format(kind))
    np.testing.assert_array_equal(x.astype(np.float32), X)
    np.testing.assert_array_equal(y, Y)


def test_columns_of_images_and_class_labels_are_read() -> None:
    datasets = hugging_face()
    pixels = np.random.default_rng(1).integers(0, 256, (12, 4, 4, 3), dtype=np.uint8)
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    columns = {"image": [Image.fromarray(image) for image in pixels], "label": Y.tolist()}
    table = datasets.Dataset.from_dict(columns, features=features)
    x, y = read(table.with_format("torch"))
    np.testing.assert_allclose(x, pixels.transpose(0, 3, 1, 2) / 255, rtol=1e-6)
    np.testing.assert_array_equal(y, Y)


def test_renamed_columns_of_a_transform_are_read() -> None:
    table = hugging_face().Dataset.from_dict({"pixels": X.tolist(), "digit": Y.tolist()})
    x, y = read(table.with_transform(lambda batch: {"image": batch["pixels"], "label": batch["digit"]}))
    np.testing.assert_array_equal(x.astype(np.float32), X)
    np.testing.assert_array_equal(y, Y)


def test_tables_of_hugging_face_in_other_forms_are_refused() -> None:
    datasets = hugging_face()
    table = datasets.Dataset.from_dict({"img": X.tolist(), "fine_label": Y.tolist()})
    for data, field, hint in (
        (table, "train input", "input='img', target='fine_label'"),
        (table.to_iterable_dataset(), "train", "streaming"),
        (datasets.DatasetDict(train=table, test=table), "train", "train=data['train']"),
    ):
        with refuses(field, hint):
            as_rows("train", data, "image", "label")


class FirstInput(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        return a


@pytest.mark.parametrize(
    ("kind", "alone_1d", "alone_2d", "beside_others"),
    [
        (np.float64, np.float32, np.float32, np.float32),
        (np.uint8, np.float32, np.float32, np.float32),
        (np.int32, np.float32, np.int64, np.int64),
        (np.bool_, np.float32, np.float32, np.bool_),
    ],
)
def test_training_type_of_an_input_follows_from_its_type_its_shape_and_the_other_inputs(
    kind: type[Any], alone_1d: type[Any], alone_2d: type[Any], beside_others: type[Any]
) -> None:
    """The model of a finished run converts raw inputs by the same rule."""
    model = RawInputModel(FirstInput(), None, Transforms())
    for shape, expected in (((2,), alone_1d), ((2, 3), alone_2d), ((2, 3, 4, 4), alone_1d)):
        x = np.ones(shape, kind)
        assert training_type(x, several=False) is expected
        assert model(x).numpy().dtype == expected
        assert training_type(x, several=True) is beside_others
        assert model({"a": x, "b": x}).numpy().dtype == beside_others
