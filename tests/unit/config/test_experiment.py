"""An experiment is a value: checked on construction, and every mistake is one sentence with the field's name."""

import json
import re
from typing import Any

import numpy as np
import pytest

from fedraa import Experiment


def test_defaults_are_the_first_run_that_anyone_can_do() -> None:
    experiment = Experiment()
    assert (experiment.method, experiment.dataset, experiment.clients) == ("fed-raa", "digits", 10)
    assert (experiment.engine, experiment.clock, experiment.seed) == ("ray", "virtual", 0)
    assert experiment.capabilities == "1:0.5,3:0.5"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("clients", 0, "greater than or equal to 1"),
        ("workers", 0, "greater than or equal to 1"),
        ("target_accuracy", 1.2, "less than or equal to 1"),
        ("mixing", 0.0, "greater than 0"),
        ("momentum", 1.0, "less than 1"),
        ("lr", float("inf"), "finite"),
        ("lr", float("nan"), "finite"),
        ("jitter", -0.1, "greater than or equal to 0"),
        ("seed", 2**31, "less than"),
        ("clock", "sundial", "'virtual' or 'wall'"),
        ("hidden", (8, 0), "greater than or equal to 1"),
        ("colour", "red", "not permitted"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(field: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: got .*{said}") as refused:
        Experiment(**{field: value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("lr", np.arange(300.0), "an array of float64 [300]"),
        ("local_steps", np.arange(2), "an array of int64 [2]"),
        ("clients", [3, 4], "[3, 4]"),
        ("hidden", np.array([8, 0]), "0"),
        ("dataset", lambda: None, "a lambda; takes a name or a path; give an object or a function to run("),
    ],
)
def test_a_bad_value_is_described_as_it_was_given(field: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: got {re.escape(text)}"):
        Experiment(**{field: value})


def test_an_array_with_one_number_is_that_number() -> None:
    assert Experiment(clients=np.array(3)).clients == 3


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"ratios": (0.5, 0.6)}, "ratios: 0.5 0.6 sum to 1.1; they must sum to 1"),
        (
            {"ratios": (0.5, 0.5), "fragments": 3},
            "fragments: 3 does not match the 2 ratios 0.5 0.5; give one of the two",
        ),
        (
            {"address": "auto", "engine": "local"},
            "address: got 'auto'; it has no effect with engine local; give --engine ray, or leave it out",
        ),
    ],
)
def test_fields_that_contradict_each_other(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Experiment(**fields)


def test_ratios_of_a_third_sum_to_one() -> None:
    assert Experiment(ratios=(1 / 3, 1 / 3, 1 / 3)).ratios == (1 / 3, 1 / 3, 1 / 3)


def test_nothing_changes_after_construction() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Experiment().seed = 3  # type: ignore[misc]  # that is what is tried


def test_it_survives_a_trip_through_json() -> None:
    experiment = Experiment(ratios=(0.25, 0.75), out="runs/x", target_accuracy=0.9)
    assert Experiment(**json.loads(json.dumps(experiment.model_dump(mode="json")))) == experiment
