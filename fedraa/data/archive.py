"""Data sets in one `.npz` file with the arrays x_train, y_train, x_test and y_test.

The optional arrays `clients_train` and `clients_test` name the client of each row.
"""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.check import NAMES, Array, Targets, as_dataset, convert_arrays
from fedraa.data.dataset import Dataset
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.errors import InputError, locate_error, read_failure
from fedraa.reading.regular_files import open_regular_file

OWNERS = ("clients_train", "clients_test")
NPZ_HINT = "write it with numpy.savez"


def load_npz(path: Path, targets: Targets | None = None) -> Dataset | FederatedDataset:
    """Read and check the arrays in an `.npz` file.

    The values do not change. x_train and x_test are features `[n, d]` or images `[n, channels, height, width]` if they
    are floats or uint8. Other integers are tokens `[n, length]`. With `clients_train`, the result is a
    FederatedDataset.

    Args:
        path: The file.
        targets: Checks and converts y_train and y_test. None means integer labels `[n]` from 0.

    Raises:
        InputError: The file or one of its arrays is malformed.
    """
    field = f"dataset {str(path)!r}"
    arrays = _read_arrays(path, field)
    x_train, y_train, x_test, y_test = (arrays[name] for name in NAMES)
    if OWNERS[0] not in arrays:
        if OWNERS[1] in arrays:
            raise InputError(field, f"it has {OWNERS[1]}, but no {OWNERS[0]}", hint="add it, or leave both out")
        # The errors of `as_dataset` contain the name of the data set.
        return replace(as_dataset(Dataset(str(path), x_train, y_train, x_test, y_test), targets), name=path.stem)
    try:
        train, test = (_owners_of_rows(arrays, name) for name in OWNERS)
        # `divide_dataset` checks the targets later, because its error can name the client.
        x_train, x_test = convert_arrays(arrays)
        return FederatedDataset(path.stem, (x_train, y_train), (x_test, y_test), None, train, test)
    except ValueError as error:
        raise locate_error(error, field) from error


def _read_arrays(path: Path, field: str) -> dict[str, Array]:
    try:
        if not _looks_like_numpy(path):
            raise InputError(field, "it is not an .npz file", hint=NPZ_HINT)
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(field, "it is a single array", hint=NPZ_HINT)
        with archive:
            missing = [name for name in NAMES if name not in archive.files]
            if missing:
                raise InputError(field, f"it has no {', '.join(missing)}", expected=f"the arrays {', '.join(NAMES)}")
            return {name: archive[name] for name in (*NAMES, *OWNERS) if name in archive.files}
    except FileNotFoundError:
        raise InputError(field, "there is no such file") from None
    except InputError:
        raise
    # NumPy and zipfile may raise any exception for a damaged file.
    except Exception as error:
        raise InputError(field, f"it cannot be read ({read_failure(error)})", hint=NPZ_HINT) from error


def _looks_like_numpy(path: Path) -> bool:
    """Return True for a zip archive or a single array. NumPy would unpickle any other file, which is unsafe."""
    with open_regular_file(path) as stream:
        return stream.read(6) == b"\x93NUMPY" or zipfile.is_zipfile(path)


def _owners_of_rows(arrays: dict[str, Array], name: str) -> list[Any] | None:
    if name not in arrays:
        return None
    if arrays[name].ndim != 1:
        raise InputError(name, got=arrays[name], expected="an array [samples] with the client of each sample")
    owners: list[Any] = arrays[name].tolist()
    return owners
