"""The user's own data: one `.npz` file with x_train, y_train, x_test and y_test, checked before use."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraa.data.dataset import Dataset, Labels, standardise

_NAMES = ("x_train", "y_train", "x_test", "y_test")
Array = npt.NDArray[np.generic]


def load_npz(path: Path) -> Dataset:
    """Read and check `path`.

    `x_*` is `[n, d]` features or `[n, channels, height, width]` images, floats or uint8, standardised with
    the training statistics; or `[n, length]` tokens, of any other integer type, none negative. `y_*` is
    integer `[n]`, from 0. Raises ValueError with one sentence that names the file, the array and what is
    wrong.
    """
    try:
        return _checked(path.stem, _read(path))
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
            missing = [name for name in _NAMES if name not in archive.files]
            if missing:
                raise ValueError(f"lacks {', '.join(missing)}; it must hold {', '.join(_NAMES)}")
            return {name: archive[name] for name in _NAMES}
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"cannot be read as an .npz archive ({error})") from error


def _looks_like_numpy(path: Path) -> bool:
    """An archive or a single array; numpy takes whatever is neither for a pickle, and says so."""
    with path.open("rb") as stream:
        return stream.read(6) == b"\x93NUMPY" or zipfile.is_zipfile(path)


def _checked(name: str, arrays: dict[str, Array]) -> Dataset:
    x_train, y_train, x_test, y_test = (arrays[key] for key in _NAMES)
    for split, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if x.ndim < 2 or 0 in x.shape:
            raise ValueError(f"x_{split} has shape {x.shape}; it must be [samples, ...] with nothing empty")
        if x.dtype.kind not in "fiu":
            raise ValueError(f"x_{split} holds {x.dtype}; it must hold numbers")
        if y.ndim != 1 or y.dtype.kind not in "iu":
            raise ValueError(f"y_{split} is {y.dtype} of shape {y.shape}; it must be integers of shape [samples]")
        if len(x) != len(y):
            raise ValueError(f"x_{split} has {len(x)} samples but y_{split} {len(y)}; they must be as many")
        if y.min() < 0:
            raise ValueError(f"y_{split} holds label {y.min()}; labels count from 0")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            f"samples are {x_train.shape[1:]} in x_train but {x_test.shape[1:]} in x_test; they must be alike"
        )
    classes = int(y_train.max()) + 1
    if classes > len(y_train):
        raise ValueError(f"y_train goes up to {classes - 1} with {len(y_train)} samples; number the classes from 0")
    if y_test.max() >= classes:
        raise ValueError(f"y_test holds label {y_test.max()}, but y_train ends at {classes - 1}")
    labels: tuple[Labels, Labels] = (y_train.astype(np.int64), y_test.astype(np.int64))
    if _are_tokens(x_train) and _are_tokens(x_test):
        if min(x_train.min(), x_test.min()) < 0:
            raise ValueError("x_train or x_test holds negative integers; tokens count from 0, features must be floats")
        tokens = [np.ascontiguousarray(x, dtype=np.int64) for x in (x_train, x_test)]
        return Dataset(name, tokens[0], labels[0], tokens[1], labels[1], classes)
    train, test = standardise(x_train, x_test)
    return Dataset(name, train, labels[0], test, labels[1], classes)


def _are_tokens(x: Array) -> bool:
    return x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8
