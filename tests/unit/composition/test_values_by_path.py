"""Values of a method by path: the list of paths, errors, and shortcuts."""

from dataclasses import dataclass
from typing import Any

import pytest
from refusals import refuses

import fedraa as fl
from fedraa.client.local_training import LocalTraining
from fedraa.composition.overrides import SHORTCUTS, find_path, names_that_method_lacks, set_values, values_by_path
from fedraa.composition.registry import list_methods
from fedraa.config.experiment import Experiment
from fedraa.methods.fed_quilt import DeltaMix
from fedraa.methods.fedasync import ConvexMix
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.server.optimizers import Momentum
from fedraa.server.schedule import AsyncSchedule
from fedraa.settings.resolve import resolve_method
from fedraa.submodels.policies.policy import AUTO
from fedraa.submodels.policies.slices import Rolling


def value_at(method: Any, path: str) -> Any:
    return values_by_path(method)[path]


def resolved(method: str, **override: Any) -> fl.Method:
    return resolve_method(
        Experiment(method=method, override={path.replace("__", "."): each for path, each in override.items()})
    )


@pytest.mark.parametrize("name", list_methods())
def test_setting_a_path_to_its_current_value_changes_nothing(name: str) -> None:
    method = fl.method(name)
    for path, value in values_by_path(method).items():
        assert set_values(method, {path: value}, name) == method


@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_every_shortcut_is_a_path_of_some_method(shortcut: str) -> None:
    assert shortcut in Experiment.model_fields
    for path in SHORTCUTS[shortcut]:
        only_by_shortcut = path in ("schedule.updates", "schedule.rounds")
        assert only_by_shortcut or any(path in values_by_path(method) for method in list_methods().values())


@pytest.mark.parametrize(
    ("method", "field", "path", "value"),
    [
        ("fedasync", "mixing", "update.mixing", 0.3),
        ("fedasync", "async_rule", "update", "delta(server_gain=2)"),
        ("fedavg", "submodel", "submodel", "rolling(stride=2)"),
        ("fedadam", "server_lr", "update.optimizer.server_lr", 0.3),
        ("fedbuff", "server_lr", "update.server_lr", 0.3),
        ("fedbuff", "server_optimizer", "update.optimizer", "adam"),
        ("heterofl", "capacities", "submodel.capacities.levels", (1.0, 0.5)),
        ("heterofl", "capacities", "submodel.capacities.levels", "auto"),
        ("fedavg", "momentum", "local.momentum", 0.3),
        ("fedavg", "compress", "local.compressor", "8bit"),
        ("fedavg", "local_optimizer", "local.local_optimizer", "adam(amsgrad=True)"),
        ("fedavg", "participation", "schedule.participation", "sample:3"),
    ],
)
def test_a_shortcut_and_its_path_give_equal_methods(method: str, field: str, path: str, value: object) -> None:
    by_field = resolve_method(Experiment(method=method, **{field: value}))
    assert by_field == resolve_method(Experiment(method=method, override={path: value}))
    assert by_field != resolve_method(Experiment(method=method))
    assert find_path(fl.method(method), field) == path


def test_values_take_the_types_of_their_fields() -> None:
    method = resolved("fedrolex", submodel__stride=2, local__clip=1, submodel__capacities__levels=0.5)
    assert [value_at(method, path) for path in ("submodel.stride", "local.clip")] == [2, 1.0]
    assert isinstance(value_at(method, "local.clip"), float)
    assert value_at(method, "submodel.capacities.levels") == (0.5,)
    assert value_at(resolved("heterofl", submodel__capacities__levels="auto"), "submodel.capacities.levels") == AUTO


def test_component_is_set_before_its_fields() -> None:
    method = resolve_method(
        Experiment(method="fedavg", override={"submodel.stride": 4, "submodel": "rolling(stride=3)"})
    )
    assert method.submodel == Rolling(stride=4)
    method = resolve_method(Experiment(method="fedasync", async_rule="delta", override={"update.server_gain": 2.0}))
    assert method.update == DeltaMix(server_gain=2.0)


def test_method_replace_takes_shortcuts_and_paths() -> None:
    method = fl.method("fedavg").replace(server_optimizer="momentum", **{"update.optimizer.beta": 0.5})
    assert method.update.optimizer == Momentum(beta=0.5)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("method", "path", "value", "names"),
    [
        ("fedavg", "local.sam", 0.1, ["local.sam_rho", "local.grad_mix"]),
        ("fedavg", "sam_rho.x", 0.1, ["local.momentum"]),
        ("fedavg", "local.momentun", 0.1, ["local.momentum"]),
        ("fedavg", "submodel.stride", 2, ["fedavg"]),
        ("fed-raa", "submodel", "rolling", ["fed-raa"]),
        ("fedavg", "update", "delta", ["fedavg"]),
        ("heterofl", "submodel.capacities", 0.5, ["submodel.capacities.levels"]),
        ("scaffold", "update.auxiliary", "none", ["scaffold"]),
        ("fedavg", "local.lr", 0.1, ["lr"]),
        ("fedavg", "local.steps", 3, ["local_steps"]),
        ("fedavg", "schedule.rounds", 3, ["rounds"]),
        ("fedavg", "local.control", True, []),
        ("fedavg", "local.split", 2, []),
        ("fedavg", "local.sam_rho", -1, ["0"]),
        ("fedavg", "local.sam_rho", "wide", []),
        ("fedrolex", "submodel.stride", 2.5, []),
        ("heterofl", "submodel.capacities.levels", (0.0, 1.0), []),
    ],
)
def test_error_about_a_wrong_override_names_its_path(method: str, path: str, value: object, names: list[str]) -> None:
    with refuses(path, *names):
        resolve_method(Experiment(method=method, override={path: value}))


def test_error_about_a_component_names_the_path_and_the_field() -> None:
    with refuses("update.server_gain", got=-2):
        resolve_method(Experiment(method="fedasync", override={"update": "delta(server_gain=-2)"}))
    with refuses("update.staleness.exponent", got="x"):
        resolve_method(Experiment(method="fedasync", override={"update.staleness": "polynomial(exponent='x')"}))
    with refuses("update.optimizer", got="adan"):
        resolve_method(Experiment(method="fedavg", override={"update.optimizer": "adan"}))


def test_a_value_that_is_set_twice_is_refused() -> None:
    with refuses("update.mixing", "mixing", got=0.5):
        resolve_method(Experiment(method="fedasync", mixing=0.3, override={"update.mixing": 0.5}))


@pytest.mark.parametrize(
    ("method", "component", "option", "value"),
    [
        ("fedavg", {"server_optimizer": "adam(server_lr=3)"}, "server_lr", 0.5),
        ("fedavg", {"server_optimizer": Momentum(server_lr=3)}, "server_lr", 0.5),
        ("fedavg", {"server_optimizer": {"kind": "adam", "server_lr": 3}}, "server_lr", 0.5),
        ("fedasync", {"async_rule": "convex-mix(mixing=0.3)"}, "mixing", 0.5),
        ("fedasync", {"async_rule": "convex-mix(staleness='hinge')"}, "staleness", "constant"),
        ("fedbuff", {"async_rule": "buffer(size=3)"}, "buffer_size", 5),
        ("fedbuff", {"async_rule": "buffer(optimizer='adam')"}, "server_optimizer", "yogi"),
        ("fedavg", {"submodel": "prefix(capacities=(0.5, 1))"}, "capacities", (0.25, 1)),
    ],
)
def test_option_that_contradicts_a_value_of_a_component_is_refused(
    method: str, component: dict[str, Any], option: str, value: object
) -> None:
    with refuses(option):
        resolve_method(Experiment(method=method, **component, **{option: value}))


@pytest.mark.parametrize(
    ("fields", "server_lr"),
    [
        ({"server_optimizer": "adam(server_lr=3)", "server_lr": 3.0}, 3.0),
        ({"server_optimizer": "adam(beta1=0.5)", "server_lr": 0.4}, 0.4),
        ({"server_optimizer": "adagrad", "server_lr": 0.5}, 0.5),
        ({"method": "fedbuff", "async_rule": FedBuffRule(optimizer=Momentum()), "server_lr": 0.4}, 0.4),
        ({"method": "fedasync", "async_rule": "buffer", "server_optimizer": "adam", "server_lr": 0.4}, 0.4),
    ],
)
def test_option_that_replaces_a_default_of_a_component_is_accepted(fields: dict[str, Any], server_lr: float) -> None:
    method: Any = resolve_method(Experiment(**{"method": "fedavg"} | fields))
    assert method.update.optimizer.server_lr == server_lr


def test_momentum_by_path_is_refused_for_an_optimizer_without_momentum() -> None:
    with refuses("momentum", got=0.9):
        resolve_method(Experiment(method="fedavg", local_optimizer="adam", override={"local.momentum": 0.9}))


def test_names_that_a_method_lacks_depend_on_its_new_components() -> None:
    method = fl.method("fedavg")
    values = {"submodel.stride": 2, "mixing": 0.3, "local.clip": 1.0}
    assert names_that_method_lacks(method, values) == {"submodel.stride", "mixing"}
    assert names_that_method_lacks(method, values | {"submodel": "rolling"}) == {"mixing"}


@dataclass
class Custom(ConvexMix):
    """A custom rule with a new field, and with an inherited field that it declares again."""

    depth: int = 2
    mixing: Any = 0.5  # type: ignore[assignment]


def test_fields_of_a_custom_component_are_paths() -> None:
    rule = Custom()
    method = fl.Method(submodel=fl.method("fed-raa").submodel, update=rule, schedule=AsyncSchedule())
    changed = method.replace(**{"update.depth": "three", "update.mixing": None})
    assert (value_at(changed, "update.depth"), value_at(changed, "update.mixing")) == ("three", None)
    with refuses("update.participation_correction", got=-1):
        method.replace(**{"update.participation_correction": -1})


def test_error_about_an_async_rule_without_its_schedule_names_the_schedule() -> None:
    rule = fl.method("fedasync").update
    with pytest.raises(ValueError, match="AsyncSchedule"):
        fl.Method(name="mine", update=rule)
    assert fl.Method(name="mine", update=rule, schedule=fl.AsyncSchedule()).asynchronous


def test_batch_size_of_an_own_method_is_its_default() -> None:
    own = fl.Method(name="own", local=LocalTraining(batch_size=64))
    sizes = [resolve_method(Experiment(method=own, **fields)).local.batch_size for fields in ({}, {"batch_size": 32})]
    assert sizes == [64, 32]
