"""The sections of an experiment: their fields, and their order in `--help`."""

import pytest
from refusals import refuses

from fedraa import Experiment
from fedraa.config.experiment import SECTIONS
from fedraa.config.sections import ClusterOptions, EvaluationOptions, LocalOptions, MethodOptions, StopOptions


def test_every_field_of_an_experiment_is_in_exactly_one_section() -> None:
    names = [name for section in SECTIONS for name in section.model_fields]
    assert names == list(Experiment.model_fields)
    assert len(set(names)) == len(names)


def test_a_section_keeps_the_description_and_the_default_of_its_fields() -> None:
    for section in SECTIONS:
        for name, field in section.model_fields.items():
            assert field.description, name
            assert Experiment.model_fields[name].description == field.description
            assert Experiment.model_fields[name].default == field.default


def test_experiment_is_an_instance_of_each_section() -> None:
    assert all(isinstance(Experiment(), section) for section in SECTIONS)


def test_section_checks_its_fields() -> None:
    with refuses("lr", got=-1):
        LocalOptions(lr=-1)
    with refuses("local_steps", got=0):
        LocalOptions(local_steps=0)
    with refuses("fragments", got=3):
        MethodOptions(fragments=3, ratios=(0.5, 0.5))
    with refuses("address", got="nowhere"):
        ClusterOptions(address="nowhere")
    with refuses("scheduler"):
        LocalOptions(scheduler="random")


def test_section_declares_only_fields_of_the_section_as_changeable() -> None:
    for section in SECTIONS:
        assert set(section.MAY_CHANGE) <= set(section.model_fields)


def test_only_limits_and_place_of_execution_may_change_before_resume() -> None:
    limits = {"updates", "rounds", "time", "target_accuracy", "target"}
    place = {"data_dir", "device", "engine", "workers", "address", "placement", "resources", "server_node"}
    assert Experiment.may_change() == limits | place | {"out", "quiet"}
    assert set(StopOptions.LIMITS) == set(StopOptions.model_fields)


@pytest.mark.parametrize(("value", "values"), [("a:B", ("a:B",)), (["a:B", "a:C"], ("a:B", "a:C"))])
def test_field_with_several_values_accepts_a_single_value(value: object, values: tuple[str, ...]) -> None:
    assert EvaluationOptions(metrics=value).metrics == values
