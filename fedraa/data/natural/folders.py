"""The folder of a natural data set, and the choice of test samples if the files have no test split."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError
from fedraa.rng import generator

TEST_SHARE = 0.2


def find_folder(name: str, data_dir: Path | None, holds: Callable[[Path], bool], get: str) -> Path:
    """Return the folder with the files of a data set: the user's folder, or a folder below it with a usual name.

    Args:
        name: The name of the data set.
        data_dir: The user's folder. It may be the repository of LEAF, its folder `data/NAME`, or a folder that contains
            a folder NAME.
        holds: A function that returns True if a folder has the files.
        get: A command or a web address to get the files, for the error.

    Raises:
        InputError: No folder has the files.
    """
    if data_dir is not None:
        # `data_dir` comes last, because it may also have files of other data sets.
        below = (f"data/{name}/data", f"{name}/data", name, "data", ".")
        roots = [data_dir / place for place in below if holds(data_dir / place)]
        if roots:
            return roots[0]
    raise InputError("data_dir", got=data_dir, expected=f"a folder with the files of {name}", hint=f"get them: {get}")


def hold_out_rows(owners: Sequence[Any] | npt.NDArray[Any], name: str) -> npt.NDArray[np.bool_]:
    """Return a mask [n] of test rows: a random fifth of each client's rows, rounded down.

    Args:
        owners: The client of each row [n].
        name: The name of the data set, which selects the random numbers.
    """
    _, client, counts = np.unique(np.asarray(owners), return_inverse=True, return_counts=True)
    order = np.lexsort((generator(0, f"{name} test").random(len(client)), client))
    place = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    held = np.zeros(len(client), bool)
    held[order] = place < np.repeat(np.floor(TEST_SHARE * counts), counts)
    return held
