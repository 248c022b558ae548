"""Federated data in files: a folder of images, a CSV table, arrays in `.npy` files, a table of Hugging Face's."""

from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.sources.rows import ImageRows, NpyRows, Rows, open_array
from fedraa.data.tree import Array
from fedraa.reading import refuse_no_file
from fedraa.rng import generator

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
TARGETS = ("label", "target", "y", "class")
TEST_SHARE = 0.2


def folder(path: str, size: int | None = None) -> FederatedDataset:
    """Images in `PATH/train/CLASS/` and `PATH/test/CLASS/`, or with clients in `PATH/train/CLIENT/CLASS/` and so on.

    They are read when they are trained on, from 0 to 1, all of one size or resized to `size` x `size`.
    """
    root = Path(path)
    for split in ("train", "test"):
        if not (root / split).is_dir():
            raise ValueError(
                f"there is no folder {root / split}; images are in {root}/train/CLASS and {root}/test/CLASS"
            )
    found = {split: _images(root / split) for split in ("train", "test")}
    depths = {len(path.relative_to(root).parts) for paths in found.values() for path in paths}
    if depths - {3, 4} or len(depths) > 1:
        raise ValueError(f"images are in {root}/train/CLASS or all in {root}/train/CLIENT/CLASS, in test likewise")
    classes = sorted({path.parent.name for path in found["train"]})
    number = {name: place for place, name in enumerate(classes)}
    made: dict[str, Rows] = {}
    for split, paths in found.items():
        if unknown := [path for path in paths if path.parent.name not in number]:
            raise ValueError(f"{unknown[0]} is of a class that no training image is of")
        labels = np.array([number[path.parent.name] for path in paths], np.int64)
        made[split] = ImageRows(tuple(paths), labels, size)
    owners = [[path.parts[-3] for path in paths] for paths in found.values()] if depths == {4} else [None, None]
    return FederatedDataset(root.resolve().name, made["train"], made["test"], len(classes), owners[0], owners[1])


def csv(
    path: str, target: str | None = None, client: str | None = None, test: str | None = None, classes: bool = True
) -> FederatedDataset:
    """A table with a header; numbers are features, words are numbered into columns of 0 and 1.

    `target` is the column to predict (default: label, target, y or class), `client` the one that says whose a row is
    (default: client, if there is one). `test` is a table of test rows; without it every fifth row of a fixed
    shuffle is one. With `classes` False the target is a number rather than a class.
    """
    frame, tested = _table(path), None if test is None else _table(test)
    target = target or next((name for name in TARGETS if name in frame.columns), None)
    client = client or ("client" if "client" in frame.columns else None)
    for what, column in (("target", target), ("client", client)):
        if column is None and what == "client":
            continue
        if column not in frame.columns:
            raise ValueError(
                f"{path} has no column {column!r}; it has {', '.join(map(str, frame.columns))}: give {what}='NAME'"
                if column
                else f"{path} has none of the columns {', '.join(TARGETS)}; give target='NAME'"
            )
    import pandas as pd  # slow to import, and workers do without

    if tested is None:
        if len(frame) < 2:
            raise ValueError(f"{path} has one row; there must be some to train on and some to test on")
        order = generator(0, "csv").permutation(len(frame))
        split = len(frame) - max(1, int(TEST_SHARE * len(frame)))
        frame, tested = (frame.iloc[np.sort(rows)] for rows in (order[:split], order[split:]))
    if missing := [str(name) for name in frame.columns if name not in tested.columns]:
        raise ValueError(f"{test} has no column {missing[0]!r}, which {path} has")
    both = pd.concat([frame, tested[frame.columns]])
    for column in both.columns:
        if (gone := both[column].isna().to_numpy()).any():
            raise ValueError(f"{_row(path, both, client, gone)} has no {column}")
    kept = both.drop(columns=[name for name in (target, client) if name is not None])
    for column in kept.columns:
        odd = ~_finite(pd.to_numeric(both[column], errors="coerce"))
        if 0 < odd.sum() < len(both) / 2:  # a column of words has none
            said = str(both[column][odd].iloc[0])
            where = _row(path, both, client, odd)
            raise ValueError(f"{where} has {said!r} in {column}; it must be a finite number, as others are")
    x = pd.get_dummies(kept, dtype=np.float32).to_numpy(np.float32)
    if not x.shape[1]:
        raise ValueError(f"{path} has no column besides {target}; there must be features")
    wanted = both[target]
    if classes:
        y = np.unique(wanted.to_numpy(), return_inverse=True)[1].astype(np.int64)
    else:
        y = _numbers(path, str(target), wanted)
        if not (fine := _finite(wanted)).all():
            raise ValueError(f"{_row(path, both, client, ~fine)} has a {target} that is no finite number")
    cut = len(frame)
    owners = both[client].to_numpy() if client else None
    return FederatedDataset(
        Path(path).stem,
        (x[:cut], y[:cut]),
        (x[cut:], y[cut:]),
        int(y.max()) + 1 if classes else None,
        None if owners is None else owners[:cut].tolist(),
        None if owners is None else owners[cut:].tolist(),
    )


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
        raise ValueError("hf needs the package datasets; install it: pip install 'fedraa[huggingface]'") from None
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


def _images(root: Path) -> list[Path]:
    found = sorted(path for path in root.rglob("*") if path.suffix.lower() in IMAGES)
    if not found:
        raise ValueError(f"there is no image in {root}; there must be files {', '.join(IMAGES[:3])}, ...")
    return found


def _table(path: str) -> Any:
    import pandas as pd  # slow to import, and workers do without

    try:
        refuse_no_file(Path(path))
        frame = pd.read_csv(path)
        header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as CSV ({_why(error)})") from None
    if len(twice := header[header.duplicated()].dropna()):
        raise ValueError(f"{path} has two columns {twice.iloc[0]!r}; give each a name of its own")
    if frame.empty:
        raise ValueError(f"{path} has no row")
    return frame


def _finite(column: Any) -> Any:
    """Whether each value is a number that float32 holds, bool [n]."""
    with np.errstate(over="ignore"):
        return np.isfinite(column.to_numpy(np.float64).astype(np.float32))


def _row(path: str, table: Any, client: str | None, which: Any) -> str:
    """The first of these rows of a table, and whose it is."""
    place = int(np.flatnonzero(which)[0])
    owner = None if client is None else table[client].iloc[place]
    whose = "" if owner is None or owner != owner else f", of client {owner!r},"
    return f"{path} row {int(table.index[place]) + 1}{whose}"


def _why(error: OSError | ValueError) -> str:
    said = getattr(error, "strerror", None) or str(error).strip()
    return str(said).partition("\n")[0] or type(error).__name__


def _numbers(path: str, column: str, values: Any) -> Array:
    try:
        numbers: Array = values.to_numpy(np.float32)[:, None]
    except (TypeError, ValueError):
        raise ValueError(f"{path} has a {column} that is no number; leave classes as it is") from None
    return numbers


def _owners(path: Path) -> list[Any] | None:
    if not path.exists():
        return None
    found = open_array(path)
    if found.ndim != 1:
        raise ValueError(f"{path} has shape {found.shape}; it must be [samples], one client for each")
    owners: list[Any] = found.tolist()
    return owners
