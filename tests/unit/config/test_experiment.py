"""An experiment is a value that is checked on construction. Each error names the field."""

import json
from typing import Any, get_args

import numpy as np
import pytest
from refusals import refuses

from fedraa import Experiment, run
from fedraa.errors import InputError


def test_default_experiment_is_fed_raa_on_digits_with_ten_clients() -> None:
    experiment = Experiment()
    assert (experiment.method, experiment.dataset, experiment.client_count) == ("fed-raa", "digits", 10)
    assert (experiment.engine, experiment.clock, experiment.seed) == ("ray", "virtual", 0)
    assert experiment.compute == "1:0.5,3:0.5"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("clients", 0, " from 1"),
        ("workers", 0, " from 1"),
        ("clients", 1e300, " below 9223372036854775808"),
        ("lr", 1e300, " up to 3e+38"),
        ("server_lr", 1e300, " up to 3e+38"),
        ("weight_decay", 1e39, " up to 3e+38"),
        ("clip", 1e39, " up to 3e+38"),
        ("prox_mu", 1e39, " up to 3e+38"),
        ("target_accuracy", 1.2, " up to 1"),
        ("mixing", 0.0, " above 0"),
        ("momentum", 1.0, " below 1"),
        ("lr", float("inf"), " finite number"),
        ("duration_jitter", -0.1, " from 0"),
        ("seed", 2**31, " below 2147483648"),
        ("clock", "sundial", "'virtual' or 'wall'"),
        ("max_update_norm", "x", "number or 'auto'"),
        ("capacities", "autox", "number or 'auto'"),
        ("local_steps", 0, "at least 1, or auto"),
        ("address", "nowhere", "auto, HOST:PORT or ray://HOST:PORT"),
        ("links", 3, "a path"),
        ("resources", 5, "text, such as 2:CPU=1"),
        ("lr_schedule", True, "text, such as cosine:100"),
        ("local_steps", 1.5, "a whole number or text, such as auto"),
        ("cut_layers", {"a": 1}, "a list"),
        ("clients", "many", "a whole number"),
        ("lr", True, "a number"),
        ("bf16", 5, "True or False"),
    ],
)
def test_error_about_a_wrong_field_states_the_expected_values(field: str, value: Any, expected: str) -> None:
    with refuses(field, got=value) as refused:
        Experiment(**{field: value})
    assert refused.value.expected.endswith(expected)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("field", Experiment.model_fields)
def test_error_about_a_wrong_type_has_no_words_of_pydantic(field: str) -> None:
    expected = ""
    for value in (5, 1.5, True, {"a": 1}, object()):
        try:
            Experiment(**{field: value})
        except InputError as error:
            expected += f" {error.expected.lower()}"
    assert not {"valid", "string", "integer", "float", "boolean", "tuple", "dictionary"} & set(expected.split())


def test_error_about_a_wrong_item_has_the_field_and_the_item() -> None:
    with refuses("hidden", got=0):
        Experiment(hidden=(8, 0))
    with refuses("lr", "finite"):
        Experiment(lr=float("nan"))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("lr", np.arange(300.0), "an array of float64 [300]"),
        ("local_steps", np.arange(2), "an array of int64 [2]"),
        ("clients", [3, 4], "[3, 4]"),
        ("hidden", np.array([8, 0]), "0"),
        ("dataset", lambda: None, "run(experiment, dataset=...)"),
    ],
)
def test_error_about_a_wrong_field_describes_the_value(field: str, value: Any, text: str) -> None:
    with refuses(field, text):
        Experiment(**{field: value})


def leaves(annotation: Any) -> set[Any]:
    """Return the types of a field, without unions, tuples and bounds."""
    inner = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    if not inner:
        return {annotation}
    return set().union(*map(leaves, inner))


FIELDS = {name: leaves(field.annotation) for name, field in Experiment.model_fields.items()}
NUMBERS = [name for name, types in FIELDS.items() if types & {int, float}]
SWITCHES = [name for name, types in FIELDS.items() if bool in types]


@pytest.mark.parametrize("value", [True, np.bool_(True), [True], "1", "0.5", ["1"], b"1"])
@pytest.mark.parametrize("field", NUMBERS)
def test_number_of_another_type_is_refused(field: str, value: Any) -> None:
    with refuses(field):
        Experiment(**{field: value})


@pytest.mark.parametrize("value", [1, 1.0, "yes", "1", b"1"])
@pytest.mark.parametrize("field", SWITCHES)
def test_switch_of_another_type_is_refused(field: str, value: Any) -> None:
    with refuses(field, got=value):
        Experiment(**{field: value})


@pytest.mark.parametrize("value", [True, "1", 0.5, -1])
def test_restarts_of_another_type_are_refused(value: Any) -> None:
    with refuses("restarts", got=value):
        run(engine="local", hidden=(8,), clients=2, restarts=value)


def test_whole_number_may_be_a_float_or_a_number_of_numpy() -> None:
    experiment = Experiment(clients=1e1, hidden=[8.0, np.int64(4)], lr=1, dropout=np.float32(0.5), seed=np.uint8(3))
    assert (experiment.clients, experiment.hidden, experiment.lr) == (10, (8, 4), 1.0)
    assert (experiment.dropout, experiment.seed) == (0.5, 3)
    assert Experiment(hidden=range(8, 10), quiet=np.bool_(True)).hidden == (8, 9)


def test_array_with_one_number_is_accepted_as_a_number() -> None:
    assert Experiment(clients=np.array(3)).clients == 3


@pytest.mark.parametrize(
    ("field", "last"),
    [("colour", ["fields"]), ("learning_rate", ["lr?"]), ("csv", ["callbacks=[\"csv(path='evals.csv')\"]"])],
)
def test_experiment_with_an_unknown_field_suggests_the_known_one(field: str, last: list[str]) -> None:
    with refuses(field) as refused:
        Experiment(**{field: "red"})
    assert refused.value.hint.split()[-1:] == last


@pytest.mark.parametrize(
    ("fields", "field", "names"),
    [
        ({"ratios": (0.5, 0.6)}, "ratios", ["1.1"]),
        ({"ratios": (0.5, 0.5), "fragments": 3}, "fragments", ["2 ratios"]),
        ({"target": "r2:0.5", "target_accuracy": 0.9}, "target", ["target_accuracy"]),
        ({"address": "auto", "engine": "local"}, "address", ["engine local"]),
        ({"resources": ("1:CPU=1", "1:CPU=1"), "workers": 3}, "workers", ["2", "resources"]),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], field: str, names: list[str]) -> None:
    with refuses(field, *names, got=fields[field]):
        Experiment(**fields)


def test_ratios_of_a_third_sum_to_one() -> None:
    assert Experiment(ratios=(1 / 3, 1 / 3, 1 / 3)).ratios == (1 / 3, 1 / 3, 1 / 3)


def test_experiment_is_frozen() -> None:
    with refuses("seed"):
        Experiment().seed = 3  # type: ignore[misc]


def test_experiment_with_an_object_without_a_hash_can_be_in_a_set() -> None:
    metric: list[float] = []
    experiments = [
        Experiment(metrics=(metric,), override={"local.clip": 1, "update.staleness": metric}, lr=lr)
        for lr in (0.1, 0.1, 0.2)
    ]
    assert len(set(experiments)) == 2


def test_experiment_from_json_equals_the_original() -> None:
    experiment = Experiment(ratios=(0.25, 0.75), out="runs/x", target_accuracy=0.9)
    assert Experiment(**json.loads(json.dumps(experiment.model_dump(mode="json")))) == experiment
