"""The user's own data: one `.npz` file with x_train, y_train, x_test and y_test, checked before use.

With `clients_train`, and `clients_test` perhaps, it says whose each row is, as a folder of `.npy` files does.
"""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.check import NAMES, Array, Targets, as_tokens, check_arrays, check_inputs, count_classes
from fedraa.data.dataset import Dataset, Features, as_float32, finite
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.reading import opened

OWNERS = ("clients_train", "clients_test")


def load_npz(path: Path, targets: Targets | None = None) -> Dataset | FederatedDataset:
    """Read and check `path`.

    `x_*` is `[n, d]` features or `[n, channels, height, width]` images, floats or uint8; or `[n, length]` tokens, of
    any other integer type, none negative. `y_*` is integer `[n]`, from 0, or what `targets` takes. With `clients_*`
    they are samples of clients. The values are those of the file. Raises ValueError with one sentence that names the
    file, the array and what is wrong.
    """
    try:
        arrays = _read(path)
        if OWNERS[0] not in arrays:
            return _checked(path.stem, arrays, targets)
        train, test = (_owners(arrays, name) for name in OWNERS)
        # what is wrong with a target is told later, with the client
        check_inputs(arrays)
        x_train, x_test = _inputs(arrays)
        y_train, y_test = arrays["y_train"], arrays["y_test"]
        return FederatedDataset(path.stem, (x_train, y_train), (x_test, y_test), None, train, test)
    except ValueError as error:
        raise ValueError(f"dataset {str(path)!r}: {error}") from error


def _read(path: Path) -> dict[str, Array]:
    try:
        if not _looks_like_numpy(path):
            raise ValueError("cannot be read as an .npz archive (it is something else)")
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("is a single array; it must be an archive as numpy.savez writes it")
        with archive:
            missing = [name for name in NAMES if name not in archive.files]
            if missing:
                raise ValueError(f"lacks {', '.join(missing)}; it must hold {', '.join(NAMES)}")
            return {name: archive[name] for name in (*NAMES, *OWNERS) if name in archive.files}
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except ValueError:
        raise
    except Exception as error:  # NumPy and zipfile raise anything for a header that is damaged, or of more than fits
        raise ValueError(f"cannot be read as an .npz archive ({_first_line(error)})") from error


def _looks_like_numpy(path: Path) -> bool:
    """An archive or a single array; numpy takes whatever is neither for a pickle, and says so."""
    with opened(path) as stream:
        return stream.read(6) == b"\x93NUMPY" or zipfile.is_zipfile(path)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _owners(arrays: dict[str, Array], name: str) -> list[Any] | None:
    if name not in arrays:
        return None
    found: list[Any] = arrays[name].tolist()
    if arrays[name].ndim != 1:
        raise ValueError(f"{name} has shape {arrays[name].shape}; it must be [samples], one client for each")
    return found


def _inputs(arrays: dict[str, Array]) -> list[Features]:
    """Return x_train and x_test, tokens or float32; ValueError if x_test has a value that float32 does not hold."""
    if (tokens := as_tokens(arrays)) is not None:
        return tokens
    x_train, x_test = (as_float32(arrays[name], name) for name in ("x_train", "x_test"))
    return [x_train, finite("x_test", x_test)]


def _checked(name: str, arrays: dict[str, Array], targets: Targets | None) -> Dataset:
    if targets is not None:
        check_inputs(arrays)
        y_train, y_test, classes = targets(arrays["y_train"], arrays["y_test"], 0)
        x_train, x_test = _inputs(arrays)
        return Dataset(name, x_train, y_train, x_test, y_test, classes)
    check_arrays(arrays)
    y_train, y_test = arrays["y_train"], arrays["y_test"]
    classes = count_classes(y_train)
    if y_test.max() >= classes:
        raise ValueError(f"y_test holds label {y_test.max()}, but y_train ends at {classes - 1}")
    x_train, x_test = _inputs(arrays)
    return Dataset(name, x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), classes)
