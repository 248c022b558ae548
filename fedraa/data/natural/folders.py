"""The folder of a data set below the folder of the user, the error if it is missing, and test rows held back."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError
from fedraa.rng import generator

TEST_SHARE = 0.2


def find_folder(name: str, data_dir: Path | None, holds: Callable[[Path], bool], get: str) -> Path:
    """Return the folder with the files of the data set `name`: `data_dir`, or a folder that tools create below it.

    Args:
        name: The name of the data set.
        data_dir: The folder of the user. It may be LEAF's repository, its folder `data/NAME`, or any folder above NAME.
        holds: A function that returns True for the folder with the files.
        get: A command or an address to get the files.

    Raises:
        InputError: No folder has the files.
    """
    if data_dir is not None:
        # `data_dir` comes last, because it may have files of other data sets.
        below = (f"data/{name}/data", f"{name}/data", name, "data", ".")
        roots = [data_dir / place for place in below if holds(data_dir / place)]
        if roots:
            return roots[0]
    raise InputError("data_dir", got=data_dir, expected=f"a folder with the files of {name}", hint=f"get them: {get}")


def hold_out_rows(owners: Sequence[Any] | npt.NDArray[Any], name: str) -> npt.NDArray[np.bool_]:
    """Return True for the test rows of a data set without a test split: a fifth of each client's rows, rounded down.

    The rows are the same in every run.

    Args:
        owners: The client of each row.
        name: The name of the data set, from which the random rows are drawn.
    """
    _, client, counts = np.unique(np.asarray(owners), return_inverse=True, return_counts=True)
    order = np.lexsort((generator(0, f"{name} test").random(len(client)), client))
    place = np.arange(len(client)) - np.repeat(np.cumsum(counts) - counts, counts)
    held = np.zeros(len(client), bool)
    held[order] = place < np.repeat(np.floor(TEST_SHARE * counts), counts)
    return held
