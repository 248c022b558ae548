"""Limits on the metrics of the structure of the code."""

import pytest

from benchmarks.system import structure
from benchmarks.system.structure import assign_levels, files_that_name, structure_metrics


def test_structure_metrics_stay_within_their_limits() -> None:
    counted = structure_metrics()
    assert counted["cycles"] == 0
    assert counted["modules at the root of fedraa"] <= 10
    assert counted["levels"] <= 19
    assert counted["source files that a new method touches"] == 1
    assert counted["files to read for the whole path of fedavg"] == 5
    assert counted["files to read for the whole path of fed-raa"] == 5


def test_method_is_named_only_in_its_module() -> None:
    assert files_that_name("asyncfeded") == ["fedraa/methods/asyncfeded.py"]
    assert files_that_name("prunefl") == ["fedraa/methods/prunefl.py"]


def test_levels_put_each_folder_above_its_imports() -> None:
    assert assign_levels({"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"c"}}) == [["c"], ["b", "d"], ["a"]]


def test_cycle_has_no_levels() -> None:
    with pytest.raises(ValueError, match="cycle"):
        assign_levels({"a": {"b"}, "b": {"a"}})


def test_a_file_that_is_not_on_the_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure.re, "findall", lambda *args: ["report/page.py"])
    with pytest.raises(ValueError, match="page"):
        structure.read_next("fedavg")
