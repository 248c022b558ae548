"""Tables in Parquet or CSV files, as `hf download` or the package `datasets` write them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.errors import InputError, read_failure
from fedraa.reading.regular_files import refuse_irregular_file
from fedraa.reading.table_file import open_table


def find_tables(root: Path, split: str, suffix: str = ".parquet") -> list[Path]:
    """Return the sorted files of a split, such as `train-*.parquet` in `root` or `root/data`.

    The branch `refs/convert/parquet` of Hugging Face has `default/train/*.parquet`.

    Args:
        root: The folder of the table.
        split: The name of the split.
        suffix: The end of the names of the files.
    """
    patterns = (f"{split}*{suffix}", f"data/{split}*{suffix}", f"default/{split}/*{suffix}")
    return sorted(path for pattern in patterns for path in root.glob(pattern))


def read_tables(files: Sequence[Path], columns: Sequence[str]) -> Any:
    """Return the columns of all files as one pandas DataFrame, whose rows `name_cell` can name.

    Raises InputError if a file cannot be read, or a value is missing. The error names the file and the row.
    """
    # Importing pandas is slow, and workers do not need it.
    import pandas as pd

    frames = []
    for path in files:
        if path.suffix == ".csv":
            # A text may begin with a space.
            frame = open_table(str(path), keep_spaces=True).texts(columns)
            is_empty = frame == ""
        else:
            frame = _read_parquet(path, columns)
            is_empty = frame.isna()
        rows, places = np.nonzero(is_empty.to_numpy())
        frames.append(frame)
        if rows.size:
            field = name_cell(pd.concat({str(path): frame}), columns[places[0]], int(rows[0]))
            raise InputError(field, "it is empty", expected="a value in every row")
    return pd.concat(dict(zip(map(str, files), frames, strict=True)))


def name_cell(frame: Any, column: str, place: int) -> str:
    """Return the name of a cell of `read_tables` in errors: its file, its line (CSV) or its row from 0, its column."""
    path, number = frame.index[place]
    kind = "line" if path.endswith(".csv") else "row"
    return f"{path} {kind} {number} {column}"


def _read_parquet(path: Path, columns: Sequence[str]) -> Any:
    import pandas as pd

    try:
        refuse_irregular_file(path)
        return pd.read_parquet(path, columns=list(columns))
    except ImportError:
        hint = "install it: pip install 'fedraa[huggingface]'"
        raise InputError(str(path), "Parquet files need the package pyarrow", hint=hint) from None
    # pyarrow can raise any exception.
    except Exception as error:
        problem = f"it cannot be read ({read_failure(error)})"
        raise InputError(str(path), problem, expected=f"a table with the columns {', '.join(columns)}") from None
