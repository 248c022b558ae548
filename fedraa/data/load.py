"""Loading of data sets by name, from a file or from a folder."""

import inspect
import os
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.arguments import to_path
from fedraa.components.calls import convert_errors
from fedraa.components.imports import is_path
from fedraa.components.registry import ComponentRegistry
from fedraa.data.archive import load_npz
from fedraa.data.check import Targets, as_dataset
from fedraa.data.dataset import Dataset, as_float32
from fedraa.data.natural import NATURAL, read_shakespeare
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.sources.files import read_csv, read_folder, read_hugging_face, read_npy
from fedraa.data.text import load_agnews
from fedraa.data.vision import VISION, load_vision
from fedraa.errors import InputError, locate_in_dataset, no_effect_error, suggest_closest
from fedraa.reading.table_file import PACKED

FILES: dict[str, Callable[..., FederatedDataset]] = {
    "folder": read_folder,
    "csv": read_csv,
    "npy": read_npy,
    "hf": read_hugging_face,
}
SOURCES: ComponentRegistry[Any] = ComponentRegistry("dataset", (), FILES)
TABLES = (".csv", ".tsv", ".txt")
DIGITS_TEST = 360
"""Number of test rows of digits, a fifth of all rows."""
DIGITS = "digits"
DATASETS: tuple[str, ...] = (DIGITS, *VISION, "agnews", *NATURAL)


def load_dataset(
    name: str | Path, data_dir: str | Path | None = None, targets: Targets | None = None
) -> Dataset | FederatedDataset:
    """Return the data set that `name` describes, without scaling.

        data = fedraa.load_dataset("sales.csv")
        x_test, y_test = data.test

    A run scales the values later. A model from `history.load_model()` expects unscaled values.

    Args:
        name: One of these texts:
            a name in `DATASETS`;
            an `.npz` file, or a table in a `.csv`, `.tsv` or `.txt` file, which may be compressed (`.csv.gz`);
            `folder:PATH`, `npy:PATH` or `hf:PATH`, or with options `folder('PATH', size=64)` or
            `csv('FILE', target='COLUMN', client='COLUMN')`;
            `package.module:callable`, a function that returns a Dataset or a FederatedDataset. It may have a parameter
            `data_dir`.
        data_dir: The folder with the files of a data set in `DATASETS`. Missing image data sets are downloaded to it.
            digits needs no folder, because scikit-learn contains it.
        targets: A function that checks and converts targets. None means labels of classes.

    Raises:
        InputError: The name is unknown, `data_dir` has no effect, or the data are missing or malformed.
    """
    if not isinstance(name, str):
        name = str(to_path("dataset", name, "a name or a path"))
    folder = None
    if data_dir is not None:
        folder = to_path("data_dir", data_dir)
        _refuse_unused_folder(name, folder)
    if name.endswith(".npz"):
        return load_npz(Path(name), targets)
    source = _in_files(name, classes=targets is None)
    if source is not None:
        return source
    if is_path(name.partition("(")[0].strip()):
        return _load_custom(name, folder, targets)
    if name not in DATASETS:
        # Unlike `Path.exists`, this function returns False for a name that is too long for a path.
        if os.path.exists(name):
            raise _unknown_form(name)
        raise InputError(
            "dataset",
            got=name,
            expected=f"one of {', '.join(DATASETS)}, the path of an .npz or .csv file, folder:PATH, npy:PATH, hf:PATH, "
            "or package.module:callable",
            hint=suggest_closest(name, DATASETS),
        )
    if name == "shakespeare":
        return read_shakespeare(folder, every_position=targets is not None)
    if name in NATURAL:
        return NATURAL[name](folder)
    dataset = _load_builtin(name, folder)
    if targets is None:
        return dataset
    return as_dataset(dataset, targets)


def _refuse_unused_folder(name: str, data_dir: Path) -> None:
    """Raise InputError if the data set `name` does not use `data_dir`.

    Such a data set is part of a package, or its name contains a path.
    """
    kind = name.partition("(")[0].partition(":")[0].strip()
    if name == DIGITS or name.endswith(".npz") or _is_table(name) or kind in FILES:
        names = "|".join(dataset for dataset in DATASETS if dataset != DIGITS)
        raise no_effect_error("data_dir", data_dir, f"dataset {name}", f"use --dataset {names}, or leave it out")


def _load_builtin(name: str, data_dir: Path | None) -> Dataset:
    if name == DIGITS:
        return _load_digits()
    if data_dir is None:
        raise InputError("data_dir", f"it is missing for dataset {name!r}", hint="give the folder of its files")
    if not data_dir.is_dir():
        raise InputError("data_dir", got=data_dir, expected=f"a folder that exists, for dataset {name!r}")
    if name == "agnews":
        return load_agnews(data_dir)
    return load_vision(name, data_dir)


def _in_files(name: str, *, classes: bool) -> FederatedDataset | None:
    """Return a data set that is stored in files, or None if `name` does not describe files.

    Args:
        name: The text of the user, such as `folder:PATH`.
        classes: True if the targets of a table are classes, False if they are numbers. An option in `name`
            takes precedence.
    """
    kind = name.partition("(")[0].strip()
    try:
        files = FILES | {"csv": partial(read_csv, classes=classes)}
        if kind in FILES and name.endswith(")"):
            source: FederatedDataset = ComponentRegistry("dataset", (), files).resolve(name)
            return source
        if _is_table(name):
            return read_csv(name, classes=classes)
        kind, _, path = name.partition(":")
        if not path or kind not in FILES:
            return None
        return files[kind](path)
    except ValueError as error:
        if isinstance(error, InputError) and error.field.split()[0] == "dataset":
            raise
        raise locate_in_dataset(error, name) from None


def _is_table(name: str) -> bool:
    """Return True for the name of a text file with a table, which may be compressed."""
    lower = name.lower()
    for packed in PACKED:
        lower = lower.removesuffix(packed)
    return ":" not in name and lower.endswith(TABLES)


def _unknown_form(path: str) -> InputError:
    field = f"dataset {path!r}"
    if Path(path).is_dir():
        expected = (
            f"the kind of its data: folder:{path} for images in train/CLASS and test/CLASS, npy:{path} for x_train.npy "
            f"and so on, or hf:{path} for a table of Hugging Face"
        )
        hint = "if it has CSV files, join them into one table, with a column client that names the file of each row"
        return InputError(field, "it is a folder of unknown kind", expected=expected, hint=hint)
    hint = f"save a table with pandas: frame.to_csv('{Path(path).stem}.csv', index=False)"
    expected = f"a table in {', '.join(TABLES)}, or arrays in .npz"
    return InputError(field, "a file of this kind cannot be read", expected=expected, hint=hint)


def _load_custom(path: str, data_dir: Path | None, targets: Targets | None) -> Dataset | FederatedDataset:
    source = SOURCES.resolve(path)
    takes_folder = False
    if not isinstance(source, Dataset | FederatedDataset) and callable(source):
        with convert_errors("dataset", source):
            takes_folder = "data_dir" in inspect.signature(source).parameters
            arguments = {"data_dir": data_dir} if takes_folder else {}
            source = source(**arguments)
    if data_dir is not None and not takes_folder:
        raise no_effect_error("data_dir", data_dir, f"dataset {path}, which has no parameter data_dir")
    if isinstance(source, FederatedDataset):
        return source
    return as_dataset(source, targets)


@cache
def _read_digits() -> npt.NDArray[np.float64]:
    """Return the table of the digits: one row per image, with the label in the last column.

    The file is part of scikit-learn. It is read without an import of scikit-learn, which would take longer than the
    start of a worker.
    """
    package = find_spec("sklearn")
    # scikit-learn is installed, because fedraa depends on it.
    assert package is not None
    return np.loadtxt(Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")


def _load_digits() -> Dataset:
    """Return the 8x8 digits of scikit-learn (UCI, Alpaydin and Kaynak 1998) in a fixed, stratified split.

    `digits_split.npy` has the rows of scikit-learn's `train_test_split` with random_state 0.
    """
    table = _read_digits()
    images, labels = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)
    train, test = np.split(np.load(Path(__file__).with_name("digits_split.npy")), [-DIGITS_TEST])
    x_train, x_test = as_float32(images[train]), as_float32(images[test])
    return Dataset("digits", x_train, labels[train], x_test, labels[test], classes=10)
