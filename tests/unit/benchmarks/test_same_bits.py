"""The comparison of bits detects one changed rounding, and its experiments cover every named method."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from benchmarks.__main__ import main
from benchmarks.system import same_bits
from fedraa.cli.exit_code import exit_code
from fedraa.composition.registry import list_methods
from fedraa.methods import fedasync

METHODS = list_methods()


def digests(directory: Path) -> same_bits.Digests:
    same_bits._list_experiments()["fedasync"](directory)
    return same_bits.digests_of(directory)


def test_one_changed_rounding_changes_the_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_bits, "UPDATES", 8)
    expected = digests(tmp_path / "a")
    assert digests(tmp_path / "b") == expected
    blend: Callable[..., None] = fedasync.blend_weights
    calls = []

    def blend_with_one_rounding(params: Any, *args: Any) -> None:
        blend(params, *args)
        calls.append(args)
        # Later mixing halves an earlier change, which may then be lost in rounding.
        if len(calls) == same_bits.UPDATES:
            params[-1] = np.nextafter(params[-1], np.float32(1))

    monkeypatch.setattr(fedasync, "blend_weights", blend_with_one_rounding)
    changed = digests(tmp_path / "c")
    assert changed["model"] != expected["model"]
    assert changed["summary"] != expected["summary"]
    assert same_bits._describe_difference("fedasync", changed, expected) is not None


def test_experiments_cover_every_method_and_are_at_least_70() -> None:
    experiments = same_bits._list_experiments()
    assert len(experiments) >= 70
    assert set(METHODS) < set(experiments)


def test_unknown_run_is_refused_before_the_base_is_checked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_bits, "_checkout_base", lambda base: pytest.fail("checked out"))
    with refuses("only", "fedasync", got="fedasyn"):
        same_bits.main(only=("fedavg", "fedasyn"))


def test_run_that_the_base_does_not_know_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    same_bits._run_here(["no-such-run"])
    assert capsys.readouterr().out == ""


def test_unknown_base_commit_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "same_bits", "no-such-commit"])
    assert exit_code(main) == 2
    said = capsys.readouterr().err
    assert "base: got 'no-such-commit'" in said
    assert "Traceback" not in said
