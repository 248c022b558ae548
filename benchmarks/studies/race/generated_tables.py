"""Three data sets of generated tables with classes of unequal size. A random network determines the labels."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.sources.federated_dataset import FederatedDataset

NUMBERS = 8
# The tables have three columns of words. Each number is how many different words a column has.
WORDS = (4, 6, 10)
TEACHER_UNITS = 4
TEST_ROWS = 3_000


def rare(data_dir: Path | None) -> FederatedDataset:
    """Return 2,000 rows of two classes with the frequencies 0.9 and 0.1."""
    return _make_table("rare", rows=2_000, shares=(0.9, 0.1), seed=48)


def customers(data_dir: Path | None) -> FederatedDataset:
    """Return 2,000 rows of four classes with the frequencies 0.5, 0.3, 0.15 and 0.05."""
    return _make_table("customers", rows=2_000, shares=(0.5, 0.3, 0.15, 0.05), seed=49)


def many(data_dir: Path | None) -> FederatedDataset:
    """Return 20,000 rows of four classes with the frequencies 0.5, 0.3, 0.15 and 0.05."""
    return _make_table("many", rows=20_000, shares=(0.5, 0.3, 0.15, 0.05), seed=50)


def _make_table(name: str, *, rows: int, shares: tuple[float, ...], seed: int) -> FederatedDataset:
    """Return a table with columns of numbers and columns of words (one-hot encoded)."""
    rng = np.random.default_rng(seed)
    total = rows + TEST_ROWS
    columns: list[npt.NDArray[Any]] = [rng.normal(size=(total, NUMBERS))]
    for count in WORDS:
        frequencies = 1 / np.arange(1, count + 1)
        words = rng.choice(count, size=total, p=frequencies / frequencies.sum())
        columns.append(np.eye(count)[words])
    x = np.concatenate(columns, axis=1)
    y = _label_rows(x, shares, rng)
    x = x.astype(np.float32)
    return FederatedDataset(name, (x[:rows], y[:rows]), (x[rows:], y[rows:]), classes=len(shares))


def _label_rows(x: npt.NDArray[Any], shares: tuple[float, ...], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return a label for each row. A random network gives each row a score. Each class is a range of scores.

    Args:
        x: The rows.
        shares: The share of the rows in each class.
        rng: The source of random numbers.
    """
    first = rng.normal(size=(x.shape[1], TEACHER_UNITS)) / 2
    second = rng.normal(size=TEACHER_UNITS)
    score = np.tanh(x @ first) @ second
    limits = np.quantile(score, np.cumsum(shares)[:-1])
    labels: npt.NDArray[np.int64] = np.searchsorted(limits, score).astype(np.int64)
    return labels
