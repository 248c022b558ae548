"""Data sets in files: folders of images, CSV tables, `.npy` files, tables of Hugging Face."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.natural.folders import TEST_SHARE, hold_out_rows
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.sources.image_files import common_format, find_images
from fedraa.data.sources.rows import ImageRows, NpyRows, Rows, open_array
from fedraa.data.sources.table_columns import (
    Table,
    drop_row_numbers,
    encode_classes,
    encode_features,
    encode_numbers,
    encode_owners,
    find_target,
    read_frames,
)
from fedraa.errors import InputError, first_line
from fedraa.numbers import format_count
from fedraa.reading.table_file import is_unnamed, list_names
from fedraa.rng import generator


def read_folder(path: str, size: int | None = None) -> FederatedDataset:
    """Return the images in the folders `PATH/train/CLASS` and `PATH/test/CLASS`, with values from 0 to 1.

    Folders `PATH/train/CLIENT/CLASS` and `PATH/test/CLIENT/CLASS` also define the clients. Clients read images when
    they train. If all images are grey, they stay grey. Otherwise all are converted to RGB. Images are resized to the
    height and width `size` in pixels; without it, all must have the same size.
    """
    root = Path(path)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise InputError("size", got=size, expected="the height and width of images in pixels, as in size=64")
    for split in ("train", "test"):
        if not (root / split).is_dir():
            raise InputError(
                str(root / split),
                "there is no such folder",
                expected=f"images in {root}/train/CLASS and {root}/test/CLASS",
                hint="move some of the images, such as a fifth of each class, into this folder",
            )
    images: dict[str, list[Path]] = {}
    empty: dict[str, list[Path]] = {}
    for split in ("train", "test"):
        images[split], empty[split] = find_images(root / split)
    depth = _depth_of_images(root, [*images["train"], *images["test"]])
    classes = sorted({path.parent.name for path in images["train"]})
    number = {name: place for place, name in enumerate(classes)}
    for empty_folder in empty["train"]:
        if empty_folder.name not in number:
            raise InputError(str(empty_folder), "it has no image", hint="put images into it, or remove it")
    form = common_format(path, [*images["train"], *images["test"]], size)
    rows: dict[str, Rows] = {}
    for split, paths in images.items():
        unknown = [path for path in paths if path.parent.name not in number]
        if unknown:
            problem = f"its class {unknown[0].parent.name!r} has no image in {root / 'train'}"
            raise InputError(str(unknown[0]), problem, hint="add training images of this class, or remove its images")
        labels = np.array([number[path.parent.name] for path in paths], np.int64)
        rows[split] = ImageRows(tuple(paths), labels, form)
    if len(classes) == 1:
        raise InputError(f"{root}/train", f"all images are of the class {classes[0]!r}", expected="two classes or more")
    owners: list[Any] = [None, None]
    if depth == 4:
        owners = [[path.parts[-3] for path in paths] for paths in images.values()]
    return FederatedDataset(root.resolve().name, rows["train"], rows["test"], len(classes), owners[0], owners[1])


def read_csv(
    path: str,
    *,
    target: str | None = None,
    client: str | None = None,
    test: str | None = None,
    classes: bool = True,
    drop: str | Sequence[str] = (),
) -> FederatedDataset:
    """Return the data in a table with a header.

    Columns of numbers are features. A column of words becomes one feature per word, which is 0 or 1.

    Args:
        path: The file, with the delimiter `,`, `;`, tab or `|`. It may be compressed (`.gz`, `.bz2`, `.xz`).
        target: The column to predict. None means the column `label`, `target`, `y` or `class`.
        client: The column with the client of each row. None means the column `client`, if it exists.
        test: A file with the test rows. None uses a fifth of the rows, which are the same in every run. If there are
            clients, it uses a fifth of the rows of each client, rounded down.
        classes: True if the target is a class, False if it is a number.
        drop: The columns to omit.
    """
    dropped = tuple(drop) if isinstance(drop, list | tuple) else (drop,)
    options: dict[str, Any] = {"target": target, "client": client, "test": test, "classes": None, "drop": dropped}
    if not classes:
        options["classes"] = False
    frames, decimal_comma = read_frames(path, test, client or "client")
    names = [str(name) for name in frames[0].columns]
    for name in dropped:
        if name not in names:
            raise InputError("drop", got=name, expected=f"one of the columns {list_names(names)}")
    kept = [name for name in names if name not in dropped]
    target = find_target(path, [name for name in kept if not is_unnamed(name)], target, options)
    client = _client_column(names, kept, client, target)
    frame = drop_row_numbers(path, frames[0][kept], (target, client))
    both, cut = _with_test_rows(path, test, client, [frame, *frames[1:]])
    table = Table(path, test, both, cut, target, client, options, decimal_comma=decimal_comma)
    owners: list[Any] = [None, None]
    if client:
        rows = encode_owners(table, client)
        owners = [rows[:cut], rows[cut:]]
    features = [name for name in frame.columns if name not in (target, client)]
    if not features:
        raise InputError(path, f"it has no column besides {target}", expected="columns that are features")
    x = encode_features(table, features)
    count = None
    if classes:
        y = encode_classes(table, target)
        count = int(y.max()) + 1
    else:
        y = encode_numbers(table, target)
    return FederatedDataset(Path(path).stem, (x[:cut], y[:cut]), (x[cut:], y[cut:]), count, owners[0], owners[1])


def _client_column(names: Sequence[str], kept: Sequence[str], client: str | None, target: str) -> str | None:
    """Return the name of the column with the client of each row, or None.

    Args:
        names: All columns.
        kept: The columns that are not dropped.
        client: The column that the user named, or None.
        target: The column to predict.

    Raises:
        InputError: The column `client` does not exist, is dropped or is the target.
    """
    if client is None:
        if "client" in kept and target != "client":
            return "client"
        return None
    if client not in names:
        raise InputError("client", got=client, expected=f"one of the columns {list_names(names)}")
    if client == target:
        raise InputError("client", got=client, expected="a column other than the target")
    if client not in kept:
        raise InputError("drop", got=client, expected="a column that is a feature; this column names the clients")
    return client


def _with_test_rows(path: str, test: str | None, client: str | None, frames: Sequence[Any]) -> tuple[Any, int]:
    """Return one DataFrame of training rows and then test rows, and the number of training rows.

    Args:
        path: The file of the first DataFrame.
        test: The file of the test rows. If it is None, a fifth of the rows of the first DataFrame become test rows. If
            there are clients, they are a fifth of the rows of each client, rounded down.
        client: The column with the client of each row, or None.
        frames: The DataFrame of `path` and, if there is a file `test`, its DataFrame.
    """
    # Importing pandas is slow, and workers do not need it.
    import pandas as pd

    frame = frames[0]
    if test is not None:
        for name in frame.columns:
            if name not in frames[1].columns:
                raise InputError(test, f"it has no column {name!r}, which {path} has")
        return pd.concat([frame, frames[1][frame.columns]]), len(frame)
    if len(frame) < 2:
        raise InputError(path, "it has one row", expected="rows to train on and rows to test on")
    if client is None:
        held = np.zeros(len(frame), bool)
        held[generator(0, "csv").permutation(len(frame))[-max(1, int(TEST_SHARE * len(frame))) :]] = True
    else:
        held = hold_out_rows(pd.factorize(frame[client])[0], "csv")
        if not held.any():
            hint = "give a second file with the test rows: csv('FILE', test='FILE')"
            raise InputError(path, "each client has fewer than five rows, so none is left for tests", hint=hint)
    return frame.iloc[np.concatenate((np.flatnonzero(~held), np.flatnonzero(held)))], int((~held).sum())


def read_npy(path: str, classes: int | None = None) -> FederatedDataset:
    """Return the data in the files `x_train.npy`, `y_train.npy`, `x_test.npy` and `y_test.npy` of a folder.

    The files are memory-mapped. `clients_train.npy` and `clients_test.npy` are optional and have the client of each
    row. If the number of classes is None, it is computed from the labels.
    """
    root = Path(path)
    rows = {split: NpyRows(root / f"x_{split}.npy", root / f"y_{split}.npy") for split in ("train", "test")}
    for split, pair in rows.items():
        counts = [len(open_array(file)) for file in (pair.x, pair.y)]
        if counts[0] != counts[1]:
            problem = f"it has {format_count(counts[1], 'row')}"
            raise InputError(f"y_{split}.npy", problem, expected=f"{counts[0]}, as x_{split}.npy has")
    train_owners, test_owners = (_read_owners(root / f"clients_{split}.npy") for split in rows)
    return FederatedDataset(root.resolve().name, rows["train"], rows["test"], classes, train_owners, test_owners)


def read_hugging_face(
    path: str, input: str = "image", target: str = "label", client: str | None = None, name: str | None = None
) -> FederatedDataset:
    """Return a table of Hugging Face's `datasets` with the splits train and test.

    Args:
        path: The folder of a saved table, or a name on Hugging Face.
        input: The column of samples.
        target: The column of labels.
        client: The column with the client of each row; None without clients.
        name: The name of the configuration on Hugging Face; None for the default.
    """
    try:
        import datasets
    except ImportError:
        raise InputError("hf", "it needs the package datasets", hint="install it: pip install 'datasets>=3'") from None
    try:
        is_saved = Path(path).is_dir()
        table: Any = datasets.load_from_disk(path) if is_saved else datasets.load_dataset(path, name)
    # The package `datasets` can raise any exception.
    except Exception as error:
        raise InputError(path, f"it cannot be loaded ({first_line(error)})") from error
    if not isinstance(table, dict):
        raise InputError(path, "it is one table without splits", expected="the splits train and test")
    if not {"train", "test"} <= set(table):
        raise InputError(path, f"it has the splits {', '.join(table)}", expected="the splits train and test")
    owners: list[Any] = [None, None]
    if client is not None:
        owners = [_read_column(path, table[split], client) for split in ("train", "test")]
    return FederatedDataset(
        Path(path).resolve().name, table["train"], table["test"], None, owners[0], owners[1], input=input, target=target
    )


def _read_column(path: str, table: Any, column: str) -> list[Any]:
    if column not in table.column_names:
        raise InputError("client", got=column, expected=f"one of the columns {', '.join(table.column_names)} of {path}")
    return list(table[column])


def _depth_of_images(root: Path, paths: Sequence[Path]) -> int:
    """Return the number of names in an image's path: 3 for SPLIT/CLASS/IMAGE, 4 for SPLIT/CLIENT/CLASS/IMAGE.

    Raises InputError if a path has another number of names, or two paths have different numbers.
    """
    form = "all images in SPLIT/CLASS, or all in SPLIT/CLIENT/CLASS, with the splits train and test"
    first = paths[0].relative_to(root).parent
    for path in paths:
        place = path.relative_to(root).parent
        if len(place.parts) not in (2, 3):
            raise InputError(str(path), f"it is in {place}", expected=form)
        if len(place.parts) != len(first.parts):
            raise InputError(str(path), f"it is in {place}, but {paths[0]} is in {first}", expected=form)
    return len(first.parts) + 1


def _read_owners(path: Path) -> list[Any] | None:
    if not path.exists():
        return None
    array = open_array(path)
    if array.ndim != 1:
        raise InputError(str(path), got=array, expected="an array [samples] with the client of each sample")
    owners: list[Any] = array.tolist()
    return owners
