"""The pages of studies state the settings that a repetition needs."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.commands import format_shared
from benchmarks.studies.metrics import ACCURACY, to_target
from benchmarks.studies.recipes import RECIPES
from benchmarks.studies.recipes.scale import SIZES, Scale, Size
from benchmarks.studies.setting import chance_level, describe_setting
from benchmarks.studies.study import Cell, Study
from fedraa.config.experiment import Experiment


def test_setting_states_every_value_that_a_repetition_needs() -> None:
    common: dict[str, Any] = {"hidden": (64,), "batch_size": 16, "lr": 0.05, "time": 2.5, "clients": 10}
    rows: dict[str, dict[str, Any]] = {
        "fed-raa": {"method": "fed-raa", "eval_every": 1},
        "fedavg": {"method": "fedavg", "participation": "sample:5"},
    }
    cells = [Cell(row, Experiment(momentum=0.25, **common | own)) for row, own in rows.items()]
    to_85 = to_target({"digits": 0.85, "mnist": 0.93}, "t")
    assert describe_setting(Study("s", "S", cells, (to_85, ACCURACY), "fedavg")) == (
        "digits, mlp of 64, 10 clients, IID, 5 local epochs, batches of 16, time 2.5, lr 0.05, momentum 0.25, "
        "participation sample:5, compute 1:0.5,3:0.5, target 85 %, evaluated every update or evaluated every round"
    )


def test_setting_without_target_or_time_limit_omits_devices_and_evaluations() -> None:
    cell = Cell("a", Experiment(method="fedavg", rounds=3, momentum=0.0))
    text = describe_setting(Study("s", "S", [cell], (ACCURACY,), "a"))
    assert text.endswith("rounds 3, lr 0.05, momentum 0")


def test_chance_level_on_emnist_is_one_in_62_classes() -> None:
    """fedraa reads the split `byclass` of EMNIST: ten digits and 26 letters in two cases."""
    assert chance_level(RECIPES["fedsam_emnist"](Scale("paper", Path("data")))) == pytest.approx(100 / 62)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("size", SIZES)
def test_every_study_has_a_chance_level(name: str, size: Size) -> None:
    """The page of a study needs it, and a missing one would show only after all runs."""
    assert 0 < chance_level(RECIPES[name](Scale(size, Path("data")))) <= 50


def test_page_lists_shared_settings_that_have_an_effect() -> None:
    experiment = Scale("quick", None).experiment
    cells = [
        Cell(row, experiment("digits", method="ra-fed", lr=lr, **{"submodel.level": row}), f"lr {lr:g}")
        for lr in (0.1, 0.2)
        for row in ("S", "L")
    ]
    shared = format_shared(Study("s", "S", cells, (ACCURACY,), "S"))
    assert "| submodel.uncovered_every | 10 |" in shared
    # The columns have different rates, and the rows have different levels.
    assert "| local.lr | 0.1 or 0.2 |" in shared
    assert "submodel.level" not in shared
    assert "local.sam_rho" not in shared


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("size", SIZES)
def test_notes_on_a_method_are_only_on_pages_with_the_method(name: str, size: Size) -> None:
    study = RECIPES[name](Scale(size, Path("data")))
    notes = " ".join(study.notes).split()
    methods = {cell.experiment.method for cell in study.cells}
    for word, method in {"FedRobust": "fedrobust", "SplitFL": "heterofl", "IST": "ist"}.items():
        assert word not in notes or method in methods


def test_paper_size_of_shuffled_norms_has_both_capacities_of_table_4_in_every_run() -> None:
    """The paper, Appendix B: CIFAR-100 with high heterogeneity (FedRolex: 20 labels), capacities of 1/4 and 1/8."""
    study = RECIPES["shuffled_norms"](Scale("paper", Path("data")))
    assert {cell.experiment.capacities for cell in study.cells} == {(0.25, 0.125)}
    assert {cell.experiment.partition for cell in study.cells} == {"labels(per_client=20)"}
