"""The cache of traces on disk returns the same cuts, only for the same code and shapes."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedraa.submodels import Traced
from fedraa.submodels.tracing import trace_cache
from fedraa.submodels.tracing.trace_cache import trace_once

EXAMPLE = torch.randn(2, 5, 8)
SOURCE = """
from torch import nn


class Own(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads, self.a, self.b, self.o = heads, nn.Linear(8, 24), nn.Linear(8, 3), nn.Linear(8, 8)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.a(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return self.b(self.o(y.transpose(1, 2).reshape(b, t, d)))
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Cache every trace, and return the list of traced modules."""
    traced: list[object] = []
    monkeypatch.delenv("FEDRAA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trace_cache, "MIN_TRACE_S", 0.0)
    original = trace_cache.trace_module
    monkeypatch.setattr(
        trace_cache, "trace_module", lambda *arguments: traced.append(arguments[0]) or original(*arguments)
    )
    return traced


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], nn.Module]:
    write(tmp_path, SOURCE)
    monkeypatch.delitem(sys.modules, "own_module_of_mine", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    make: Callable[[int], nn.Module] = __import__("own_module_of_mine").Own
    return make


def write(folder: Path, source: str) -> None:
    """Write a module whose file is older than this process."""
    path = folder / "own_module_of_mine.py"
    path.write_text(source)
    os.utime(path, (1e9, 1e9))


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "fedraa").glob("*"))


def same(a: Traced, b: Traced) -> bool:
    plain = ("groups", "uncut", "names", "shapes", "offsets", "size", "grouped", "estimated", "sizes")
    np.testing.assert_equal(dict(a.units), dict(b.units))
    return all(getattr(a, name) == getattr(b, name) for name in plain)


def test_trace_cache_returns_the_same_cuts_for_the_same_code_and_shapes(
    own: Callable[[int], nn.Module], calls: list[object], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    first, other = own(2), own(2)
    traced, again = trace_once(first, EXAMPLE), trace_once(other, EXAMPLE)
    assert len(calls) == 1
    assert same(traced, again)
    assert again.groups
    assert again.sizes
    half = tuple(np.arange(group.size // 2) for group in again.groups)
    small = again.cut(half)
    assert small(EXAMPLE).shape == (2, 5, 3)
    np.testing.assert_array_equal(small.b.bias.detach(), other.b.bias.detach())
    assert len(entries(tmp_path)) == 1


def test_modules_that_differ_are_not_taken_from_the_trace_cache(
    own: Callable[[int], nn.Module], calls: list[object]
) -> None:
    for number, (heads, example) in enumerate([(2, EXAMPLE), (4, EXAMPLE), (2, EXAMPLE[:, :3])], 1):
        trace_once(own(heads), example)
        assert len(calls) == number
    frozen = own(2)
    frozen.o.requires_grad_(False)
    trace_once(frozen, EXAMPLE)
    buffered = own(2)
    buffered.register_buffer("more", torch.zeros(3))
    trace_once(buffered, EXAMPLE)
    buffered.more[0] = 1
    trace_once(buffered, EXAMPLE)
    tied = own(2)
    tied.o.weight = nn.Parameter(torch.zeros(8, 8))
    tied.b2 = tied.b
    trace_once(tied, EXAMPLE)
    assert len(calls) == 7


def test_trace_cache_changed_code_is_traced_again(
    own: Callable[[int], nn.Module], calls: list[object], tmp_path: Path
) -> None:
    trace_once(own(2), EXAMPLE)
    write(tmp_path, SOURCE + "\n# changed\n")
    trace_once(own(2), EXAMPLE)
    assert len(calls) == 2


def test_trace_cache_setting_outside_the_key_is_detected(
    own: Callable[[int], nn.Module], calls: list[object], tmp_path: Path
) -> None:
    write(
        tmp_path,
        SOURCE.replace("    def __init__", "    by_width = False\n\n    def __init__").replace(
            "softmax(-1) @ v", "softmax(-1) @ v * (q.size(1) if self.by_width else 1)"
        ),
    )
    sys.modules.pop("own_module_of_mine")
    kind: Any = __import__("own_module_of_mine").Own
    for by_width, sizes in ((False, [2, 8]), (True, [8]), (True, [8])):
        kind.by_width = by_width
        assert [group.size for group in trace_once(kind(2), EXAMPLE).groups] == sizes
    assert len(calls) == 2


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"0" * 64 + b"\n{}"])
def test_trace_cache_damaged_entry_is_replaced(
    own: Callable[[int], nn.Module], calls: list[object], tmp_path: Path, damage: bytes
) -> None:
    trace_once(own(2), EXAMPLE)
    (path,) = entries(tmp_path)
    path.write_bytes(damage)
    for _ in range(2):
        trace_once(own(2), EXAMPLE)
    assert len(calls) == 2
    assert json.loads(path.read_bytes().partition(b"\n")[2])["groups"]


def test_trace_cache_empty_variable_turns_it_off(
    own: Callable[[int], nn.Module], calls: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRAA_CACHE", "")
    for _ in range(2):
        trace_once(own(2), EXAMPLE)
    assert len(calls) == 2
    assert entries(tmp_path) == []


def test_trace_cache_unwritable_folder_is_ignored(
    own: Callable[[int], nn.Module], calls: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDRAA_CACHE", str(tmp_path / "file"))
    assert trace_once(own(2), EXAMPLE).groups
    assert len(calls) == 1


def test_trace_cache_code_without_file_is_not_cached(calls: list[object], tmp_path: Path) -> None:
    space: dict[str, type[nn.Module]] = {"__name__": __name__}
    exec(SOURCE, space)
    globals()["Own"] = space["Own"]
    try:
        trace_once(space["Own"](2), EXAMPLE)
    finally:
        del globals()["Own"]
    assert entries(tmp_path) == []


def test_trace_once_long_trace_reports_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setenv("FEDRAA_CACHE", "")

    def slow(*arguments: object) -> Traced:
        while not lines:
            time.sleep(0.001)
        # The arguments are passed on unchanged.
        return original(*arguments)  # type: ignore[arg-type]

    original = trace_cache.trace_module
    monkeypatch.setattr(trace_cache, "trace_module", slow)
    monkeypatch.setattr(trace_cache, "REPORT_AFTER_S", 0.01)
    trace_once(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), EXAMPLE, lines.append)
    assert lines == ["tracing Sequential: searching for units that can be cut"]


def test_trace_cache_code_newer_than_the_process_is_not_cached(
    own: Callable[[int], nn.Module], calls: list[object], tmp_path: Path
) -> None:
    (tmp_path / "own_module_of_mine.py").touch()
    trace_once(own(2), EXAMPLE)
    assert entries(tmp_path) == []
