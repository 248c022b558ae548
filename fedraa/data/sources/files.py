"""Federated data in files: a folder of images, a CSV table, arrays in `.npy` files, a table of Hugging Face's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
from fedraa.data.sources.table_file import is_unnamed, listed
from fedraa.rng import generator

TEST_SHARE = 0.2


def folder(path: str, size: int | None = None) -> FederatedDataset:
    """Return the images in `PATH/train/CLASS/` and `PATH/test/CLASS/`, or in `PATH/train/CLIENT/CLASS/` and so on.

    They are read when they are trained on, all of one size or resized to `size` x `size`, from 0 to 1.
    All are grey, or all are made RGB.
    """
    root = Path(path)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ValueError(f"size: got {size!r}; expected how many pixels images are high and wide, as in size=64")
    for split in ("train", "test"):
        if not (root / split).is_dir():
            raise ValueError(
                f"there is no folder {root / split}; expected images in {root}/train/CLASS and {root}/test/CLASS; "
                "move some of the images, such as a fifth of each class, into such a folder"
            )
    found: dict[str, list[Path]] = {}
    empty: dict[str, list[Path]] = {}
    for split in ("train", "test"):
        found[split], empty[split] = find_images(root / split)
    depth = _depth_of_images(root, [*found["train"], *found["test"]])
    classes = sorted({path.parent.name for path in found["train"]})
    number = {name: place for place, name in enumerate(classes)}
    for nothing in empty["train"]:
        if nothing.name not in number:
            raise ValueError(f"{nothing} has no image; put some into it, or remove it")
    form = common_format(path, [*found["train"], *found["test"]], size)
    made: dict[str, Rows] = {}
    for split, paths in found.items():
        if unknown := [path for path in paths if path.parent.name not in number]:
            raise ValueError(
                f"{unknown[0]} is of the class {unknown[0].parent.name!r}, of which {root / 'train'} has no image; "
                "add some, or remove the class"
            )
        labels = np.array([number[path.parent.name] for path in paths], np.int64)
        made[split] = ImageRows(tuple(paths), labels, form)
    if len(classes) == 1:
        raise ValueError(f"all images are of the class {classes[0]!r}; expected two classes or more in {root}/train")
    owners = [[path.parts[-3] for path in paths] for paths in found.values()] if depth == 4 else [None, None]
    return FederatedDataset(root.resolve().name, made["train"], made["test"], len(classes), owners[0], owners[1])


def csv(
    path: str,
    *,
    target: str | None = None,
    client: str | None = None,
    test: str | None = None,
    classes: bool = True,
    drop: str | Sequence[str] = (),
) -> FederatedDataset:
    """Return a table with a header; numbers are features, words become columns of 0 and 1.

    Args:
        path: The file, with the delimiter `,`, `;`, tab or `|`. It may be packed (`.gz`, `.bz2`, `.xz`).
        target: The column to predict. Default: label, target, y or class.
        client: The column that names the client of each row. Default: client, if there is one.
        test: A table of test rows. Default: every fifth row of a fixed shuffle.
        classes: True if the target is a class; False if it is a number.
        drop: Columns to leave out.
    """
    dropped = tuple(drop) if isinstance(drop, list | tuple) else (drop,)
    options = {"target": target, "client": client, "test": test, "classes": None if classes else False, "drop": dropped}
    frames, decimal_comma = read_frames(path, test)
    names = [str(name) for name in frames[0].columns]
    for name in dropped:
        if name not in names:
            raise ValueError(f"drop: there is no column {name!r}; expected one of {listed(names)}")
    kept = [name for name in names if name not in dropped]
    target = find_target(path, [name for name in kept if not is_unnamed(name)], target, options)
    client = _client_column(names, kept, client, target)
    frame = drop_row_numbers(path, frames[0][kept], (target, client))
    both, cut = _with_test_rows(path, test, [frame, *frames[1:]])
    table = Table(path, test, both, cut, target, client, options, decimal_comma=decimal_comma)
    owners = encode_owners(table, client) if client else None
    features = [name for name in frame.columns if name not in (target, client)]
    if not features:
        raise ValueError(f"{path} has no column besides {target}; there must be features")
    x = encode_features(table, features)
    y = encode_classes(table, target) if classes else encode_numbers(table, target)
    return FederatedDataset(
        Path(path).stem,
        (x[:cut], y[:cut]),
        (x[cut:], y[cut:]),
        int(y.max()) + 1 if classes else None,
        None if owners is None else owners[:cut],
        None if owners is None else owners[cut:],
    )


def _client_column(names: Sequence[str], kept: Sequence[str], client: str | None, target: str) -> str | None:
    """Return the column that names the clients, or None; `kept` are those of the columns `names` that are read."""
    if client is None:
        return "client" if "client" in kept and target != "client" else None
    if client not in names:
        raise ValueError(f"client: there is no column {client!r}; expected one of {listed(names)}")
    if client == target:
        raise ValueError(f"client: got {client!r}, which is the column to predict; expected another one")
    if client not in kept:
        raise ValueError(f"drop: got {client!r}, which names the clients; expected a column that is a feature")
    return client


def _with_test_rows(path: str, test: str | None, frames: Sequence[Any]) -> tuple[Any, int]:
    """Return the training rows followed by the test rows, in one frame, and the number of the training rows."""
    # Importing pandas is slow, and workers do without it.
    import pandas as pd

    frame = frames[0]
    if test is not None:
        for name in frame.columns:
            if name not in frames[1].columns:
                raise ValueError(f"{test} has no column {name!r}, which {path} has")
        return pd.concat([frame, frames[1][frame.columns]]), len(frame)
    if len(frame) < 2:
        raise ValueError(f"{path} has one row; there must be some to train on and some to test on")
    order = generator(0, "csv").permutation(len(frame))
    cut = len(frame) - max(1, int(TEST_SHARE * len(frame)))
    return frame.iloc[np.concatenate((np.sort(order[:cut]), np.sort(order[cut:])))], cut


def npy(path: str, classes: int | None = None) -> FederatedDataset:
    """`x_train.npy`, `y_train.npy`, `x_test.npy`, `y_test.npy` in a folder, the first memory-mapped.

    `clients_train.npy` and `clients_test.npy`, where there, say whose a row is. Values are taken as they are.
    """
    root = Path(path)
    rows = {split: NpyRows(root / f"x_{split}.npy", root / f"y_{split}.npy") for split in ("train", "test")}
    for split, pair in rows.items():
        counts = [len(open_array(file)) for file in (pair.x, pair.y)]
        if counts[0] != counts[1]:
            raise ValueError(
                f"x_{split}.npy has {counts[0]} samples but y_{split}.npy {counts[1]}; they must be as many"
            )
    train_owners, test_owners = (_owners(root / f"clients_{split}.npy") for split in rows)
    return FederatedDataset(root.resolve().name, rows["train"], rows["test"], classes, train_owners, test_owners)


def hf(
    path: str, input: str = "image", target: str = "label", client: str | None = None, name: str | None = None
) -> FederatedDataset:
    """A table of Hugging Face's `datasets` with the splits train and test: a saved one's folder, or a name of theirs.

    `input` and `target` are columns, `client` the one that says whose a row is.
    """
    try:
        import datasets
    except ImportError:
        raise ValueError("hf needs the package datasets; install it: pip install 'datasets>=3'") from None
    try:
        table: Any = datasets.load_from_disk(path) if Path(path).is_dir() else datasets.load_dataset(path, name)
    except Exception as error:  # theirs are of many kinds
        raise ValueError(f"{path} cannot be loaded ({str(error).partition(chr(10))[0]})") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path} is one table without splits; it needs train and test")
    if not {"train", "test"} <= set(table):
        raise ValueError(f"{path} has the splits {', '.join(table)}; it needs train and test")
    owners: list[Any] = [None, None]
    if client is not None:
        owners = [_column(path, table[split], client) for split in ("train", "test")]
    return FederatedDataset(
        Path(path).resolve().name, table["train"], table["test"], None, owners[0], owners[1], input=input, target=target
    )


def _column(path: str, table: Any, column: str) -> list[Any]:
    if column not in table.column_names:
        raise ValueError(f"{path} has no column {column!r}; it has {', '.join(table.column_names)}")
    return list(table[column])


def _depth_of_images(root: Path, paths: Sequence[Path]) -> int:
    """Return 3 for images in SPLIT/CLASS, 4 for SPLIT/CLIENT/CLASS; ValueError if they lie elsewhere or differ."""
    form = "expected all images in train/CLASS, or all in train/CLIENT/CLASS, in test likewise"
    first = paths[0].relative_to(root).parent
    for path in paths:
        place = path.relative_to(root).parent
        if len(place.parts) not in (2, 3):
            raise ValueError(f"{path} lies in {place}; {form}")
        if len(place.parts) != len(first.parts):
            raise ValueError(f"{path} lies in {place}, and {paths[0]} in {first}; {form}")
    return len(first.parts) + 1


def _owners(path: Path) -> list[Any] | None:
    if not path.exists():
        return None
    found = open_array(path)
    if found.ndim != 1:
        raise ValueError(f"{path} has shape {found.shape}; it must be [samples], one client for each")
    owners: list[Any] = found.tolist()
    return owners
