"""Damage to any file of a run directory, or a full disk, is noticed before training, or it is harmless."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.system import chaos_files
from benchmarks.system.chaos_files import HARMLESS, METHODS, NOTICED, Row

KINDS = [chaos_files.resumed_after_damage, chaos_files.replayed_after_damage, chaos_files.short_writes]


def bad(rows: Iterator[Row]) -> list[Row]:
    return [row for row in rows if row.outcome not in (HARMLESS, NOTICED)]


@pytest.mark.parametrize(("kind", "minimum"), [*zip(KINDS, (12, 45, 2), strict=True)])
def test_damage_of_a_run_is_noticed_or_harmless(
    kind: Callable[..., Iterator[Row]], minimum: int, tmp_path: Path
) -> None:
    assert bad(kind("fed-raa", tmp_path, np.random.default_rng(0), minimum)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_damage_of_runs_of_each_method_is_noticed_or_harmless(
    kind: Callable[..., Iterator[Row]], method: str, tmp_path: Path
) -> None:
    assert bad(kind(method, tmp_path, np.random.default_rng(1), 150)) == []
