"""Finished runs that the tests of replay share."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replaying import ASYNCHRONOUS, WAITING, small

from fedraa import run
from fedraa.composition.registry import list_methods

METHODS = list_methods()


@pytest.fixture(scope="session")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the directory of one finished run per method. Updates of asynchronous runs are stale."""
    runs: dict[str, Path] = {}

    def of(method: str) -> Path:
        if method not in runs:
            out = tmp_path_factory.mktemp("run") / method
            flags: dict[str, Any] = {"staleness": "polynomial"} if METHODS[method].path("staleness") else {}
            if method in WAITING:
                flags["updates"] = 20
            runs[method] = run(small(method, out, eval_every=3 if method in ASYNCHRONOUS else 2, **flags)).directory
        return runs[method]

    return of


@pytest.fixture
def copy(genuine: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    def of(method: str) -> Path:
        return Path(shutil.copytree(genuine(method), tmp_path / "copy"))

    return of
