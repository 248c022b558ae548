"""Numbers of the built-in components: errors about values that are not numbers or out of range."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.callbacks import CALLBACKS
from fedraa.client.compression import COMPRESSOR
from fedraa.client.local_training import LocalTraining
from fedraa.components.registry import ComponentRegistry
from fedraa.composition.method import Method
from fedraa.data.partition.divide import PARTITIONERS
from fedraa.data.transforms.make import TRANSFORMS
from fedraa.errors import InputError
from fedraa.ledger.participation import PARTICIPATION
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.numbers import round_down, round_to_total, round_up
from fedraa.objectives.builtin import OBJECTIVE
from fedraa.server.async_rule import ASYNC_RULE
from fedraa.server.optimizers import SERVER_OPTIMIZER
from fedraa.server.round_update import Mean
from fedraa.server.schedule import Rounds
from fedraa.server.staleness import STALENESS
from fedraa.submodels.policies import SUBMODEL
from fedraa.submodels.policies.policy import Capacities, SubmodelSampler
from fedraa.submodels.policies.slices import Prefix

REGISTRIES: tuple[ComponentRegistry[Any], ...] = (
    *(PARTITIONERS, TRANSFORMS, OBJECTIVE, SERVER_OPTIMIZER, STALENESS, ASYNC_RULE, SUBMODEL, PARTICIPATION),
    *(COMPRESSOR, AGGREGATOR, CALLBACKS),
)


def numbers() -> Iterator[Any]:
    for registry in REGISTRIES:
        for name, make in registry.names().items():
            for value in inspect.signature(make).parameters.values():
                if type(value.default) in (int, float):
                    yield pytest.param(registry, f"{name}({value.name}=%s)", id=f"{registry.name}-{name}-{value.name}")


@pytest.mark.parametrize(("registry", "text"), list(numbers()))
def test_component_with_a_value_that_is_no_finite_float32_is_refused(
    registry: ComponentRegistry[Any], text: str
) -> None:
    for value in ("'x'", "1e999", "-1e999", "1e300", "[1]"):
        with pytest.raises(InputError) as refused:
            registry.resolve(text % value)
        assert refused.value.field.startswith(registry.name)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("registry", "text", "name", "value", "expected"),
    [
        (ASYNC_RULE, "buffer(server_lr=-1)", "server_lr", -1, "a number above 0"),
        (ASYNC_RULE, "buffer(size=2.5)", "size", 2.5, "a whole number"),
        (ASYNC_RULE, "convex-mix(mixing=1.5)", "mixing", 1.5, "a number up to 1"),
        (ASYNC_RULE, "fedgmr(exponent=-1)", "exponent", -1, "a number from 0"),
        (SERVER_OPTIMIZER, "momentum(beta=1)", "beta", 1, "a number below 1"),
        (SERVER_OPTIMIZER, "adam(tau=0)", "tau", 0, "a number above 0"),
        (STALENESS, "polynomial(exponent='x')", "exponent", "x", "a number"),
        (SUBMODEL, "adaptive-pruning(density=2)", "density", 2, "a number up to 1"),
        (SUBMODEL, "layer-cut(layers=True)", "layers", True, "a whole number"),
        (SUBMODEL, "four-way(parts=1)", "parts", 1, "a number from 2"),
        (SUBMODEL, "arbitrary(parts=63)", "parts", 63, "a number up to 62"),
        (SUBMODEL, "pruned(parts=128)", "parts", 128, "a number up to 127"),
        (SUBMODEL, "fragments(ratios=('a', 1.0))", "ratios", ("a", 1.0), "a number"),
        (TRANSFORMS, "normalize(mean=(True,), std=(1,))", "mean", (True,), "a number"),
        (SUBMODEL, "arbitrary(level='Q')", "level", "Q", "'L', 'S' or 'MIX'"),
        (SUBMODEL, "disjoint-groups(scaled='no')", "scaled", "no", "True or False"),
        (PARTITIONERS, "labels(per_client=0)", "per_client", 0, "a number from 1"),
        (PARTITIONERS, "dirichlet(alpha=True)", "alpha", True, "a number"),
        (PARTITIONERS, "noise(level=-1)", "level", -1, "a number from 0"),
        (PARTICIPATION, "sample(count=2.5)", "count", 2.5, "a whole number"),
        (PARTICIPATION, "bernoulli(share=True)", "share", True, "a number"),
        (COMPRESSOR, "topk(share=2)", "share", 2, "a number up to 1"),
        (TRANSFORMS, "flip(share=True)", "share", True, "a number"),
        (ASYNC_RULE, "buffer(size='x')", "size", "x", "a whole number"),
        (ASYNC_RULE, "ringmaster(delay_limit=2.5)", "delay_limit", 2.5, "a whole number"),
        (ASYNC_RULE, "rms-normalized-delta(power=True)", "power", True, "a number"),
        (ASYNC_RULE, "delta(spread=3)", "spread", 3, "True or False"),
        (SERVER_OPTIMIZER, "amsgrad(corrected='no')", "corrected", "no", "True or False"),
        (AGGREGATOR, "memorised(mifa=1)", "mifa", 1, "True or False"),
        (CALLBACKS, "early-stopping(patience=0)", "patience", 0, "a number from 1"),
        (CALLBACKS, "early-stopping(mode='up')", "mode", "up", "'max' or 'min'"),
    ],
)
def test_component_error_has_the_field_the_value_and_the_expected_values(
    registry: ComponentRegistry[Any], text: str, name: str, value: object, expected: str
) -> None:
    with refuses(f"{registry.name}.{name}", got=value) as refused:
        registry.resolve(text)
    assert refused.value.expected == expected


def test_component_value_passed_twice_is_refused() -> None:
    with refuses("async_rule", "size", got="buffer(size=2, size=3)"):
        ASYNC_RULE.resolve("buffer(size=2, size=3)")


@pytest.mark.parametrize(
    ("method", "flags", "field", "value"),
    [
        ("fedbuff", {"buffer_size": 0}, "buffer_size", 0),
        ("fedavg", {"local.momentum": 1.0}, "local.momentum", 1.0),
        ("fedasync", {"concurrency": 2.5}, "concurrency", 2.5),
    ],
)
def test_method_replace_error_has_the_field_and_the_wrong_number(
    method: str, flags: dict[str, Any], field: str, value: float
) -> None:
    with refuses(field, got=value):
        fl.method(method).replace(**flags)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"local": LocalTraining(momentum=1.0)}, "method.local.momentum", 1.0),
        ({"schedule": Rounds(rounds=2.5)}, "method.schedule.rounds", 2.5),  # type: ignore[arg-type]
    ],
)
def test_custom_method_error_has_the_path_and_the_wrong_number(
    changes: dict[str, Any], field: str, value: float
) -> None:
    own = dataclasses.replace(fl.method("fedavg"), **changes)
    with refuses(field, got=value):
        fl.run(method=own, dataset="digits", engine="local", quiet=True)


class RequestsMoreArrays(SubmodelSampler):
    """A component that requests arrays which clients do not send."""

    def __init__(self, policy: fl.SubmodelPolicy, run: Any, name: str) -> None:
        self.asks = (name,)  # type: ignore[misc]
        self._sampler = fl.SubmodelPolicy.bind(policy, run)

    def draw(self, context: Any) -> Any:
        return self._sampler.draw(context)


@dataclass(frozen=True)
class RequestingPolicy(fl.SubmodelPolicy):
    name: str

    def draw(self, context: Any) -> Any:
        return context.run.units(context.run.traced.full())

    def bind(self, run: Any) -> SubmodelSampler:
        return RequestsMoreArrays(self, run, self.name)


@pytest.mark.parametrize(
    ("method", "field", "name"),
    [
        (lambda: Method(submodel=RequestingPolicy("squares")), "method", "squares"),
        (lambda: Method(submodel=RequestingPolicy("hints")), "method", "hints"),
        (lambda: Method(local=LocalTraining(transforms=None)), "gradient_transforms", "GradientTransform"),  # type: ignore[arg-type]
        (lambda: Method(update=Mean(auxiliary=None)), "auxiliary", "RoundState"),  # type: ignore[arg-type]
        (lambda: Method(submodel=Prefix(Capacities((0.5, 1.25)))), "capacities", "1.25"),
        (lambda: Method(submodel=Prefix(Capacities(redraw=1))), "redraw", "True"),  # type: ignore[arg-type]
        (lambda: Method(local=LocalTraining(steps="20")), "local_steps", "auto"),
    ],
)
def test_method_that_cannot_run_is_refused_before_the_run_directory(
    method: Callable[[], Method], field: str, name: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: [^\n]*{name}[^\n]*$"):
        fl.run(method=method(), rounds=1, engine="local", clients=2, hidden=(4,), quiet=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nested_components_objects_and_tables_are_checked() -> None:
    with refuses("server_optimizer.server_lr", got=-1):
        ASYNC_RULE.resolve("fadas(size=3, optimizer='amsgrad(server_lr=-1)')")
    with refuses("async_rule.server_lr", got=-2):
        ASYNC_RULE.resolve(FedBuffRule(server_lr=-2))
    with refuses("async_rule.server_lr", got=-2):
        ASYNC_RULE.resolve({"kind": "buffer", "server_lr": -2})


def test_numpy_numbers_are_accepted_and_custom_annotations_are_not_checked() -> None:
    assert ASYNC_RULE.resolve(FedBuffRule(size=np.int64(3), server_lr=np.float32(0.5))).per_step == 3

    @dataclass
    class Own(fl.ServerOptimizer):
        server_lr: Annotated["Unknown", "of a library"] = -1.0  # type: ignore[name-defined] # noqa: F821

        def step(self, params: Any, delta: Any, moved: Any) -> None: ...

    assert SERVER_OPTIMIZER.resolve(Own()).server_lr == -1


class Inherits(FedBuffRule):
    """A custom component with the fields of a built-in one."""


@dataclass
class Annotates(FedBuffRule):
    server_lr: float = -1.0


def test_inherited_fields_of_custom_components_are_checked() -> None:
    with refuses("async_rule.size", got=2.5):
        ASYNC_RULE.resolve(Inherits(size=2.5))  # type: ignore[arg-type]
    with refuses("async_rule.size", got=2.5):
        ASYNC_RULE.resolve(Annotates(size=2.5))  # type: ignore[arg-type]
    assert ASYNC_RULE.resolve(Inherits(size=np.int64(3))).per_step == 3
    assert ASYNC_RULE.resolve(Annotates()).server_lr == -1  # type: ignore[attr-defined]


def test_rounding_up_and_down_ignores_rounding_errors() -> None:
    """0.29 * 100 is 28.999999999999996, and 0.55 * 100 is 55.00000000000001."""
    assert [round_down(number) for number in (0.29 * 100, 2.999, 3.0)] == [29, 2, 3]
    assert [round_up(number) for number in (0.55 * 100, 3.001, 3.0)] == [55, 4, 3]


def test_rounding_to_a_total_rounds_up_the_largest_fractions() -> None:
    assert round_to_total(np.array([1.5, 2.75, 0.75]), 5).tolist() == [1, 3, 1]
    assert round_to_total(np.array([0.5, 0.5, 2.0]), 3).tolist() == [1, 0, 2]
