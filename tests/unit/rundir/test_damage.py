"""Damage to any file of a run directory is noticed before anything is trained, or does no harm; a full disk, too."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.system import chaos_files
from benchmarks.system.chaos_files import HARMLESS, METHODS, NOTICED, Row

KINDS = [chaos_files.resumed_after_damage, chaos_files.replayed_after_damage, chaos_files.short_writes]


def bad(rows: Iterator[Row]) -> list[Row]:
    return [row for row in rows if row.outcome not in (HARMLESS, NOTICED)]


@pytest.mark.parametrize(("kind", "count"), [*zip(KINDS, (12, 45, 2), strict=True)])
def test_mishaps(kind: Callable[..., Iterator[Row]], count: int, tmp_path: Path) -> None:
    assert bad(kind("fed-raa", tmp_path, np.random.default_rng(0), count)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_many_mishaps(kind: Callable[..., Iterator[Row]], method: str, tmp_path: Path) -> None:
    assert bad(kind(method, tmp_path, np.random.default_rng(1), 150)) == []
