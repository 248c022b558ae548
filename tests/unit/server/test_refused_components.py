"""Components and results that a server cannot use are refused with their field; a guarantee is never lost silently."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

import fedraa as fl
from fedraa.engine.build import build_run
from fedraa.errors import InputError
from fedraa.methods.fed_quilt import DeltaMix, RMSNormalizedDelta
from fedraa.methods.fedasync import ConvexMix
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.server.async_rule import AsyncModel, ClientUpdate, factor_at
from fedraa.server.optimizers import Adaptive
from fedraa.server.round_server import received_buffer
from fedraa.server.round_update import Mean
from fedraa.server.stores.local import checked_apply
from fedraa.testing.kinds import KINDS, Kind


def apply_update(self: Any, update: ClientUpdate, model: AsyncModel) -> fl.ApplyResult:
    return fl.ApplyResult(0.5)


@pytest.mark.parametrize(
    ("base", "names"),
    [(ConvexMix, "mixing_formula"), (DeltaMix, "mixing_formula"), (FedBuffRule, "adds_noise")],
)
def test_subclass_that_overrides_apply_update_must_declare_its_guarantees(base: type, names: str) -> None:
    with pytest.raises(TypeError, match=f"Own .* {names};"):
        type("Own", (base,), {"apply_update": apply_update})


def test_subclass_that_declares_its_guarantees_again_keeps_them() -> None:
    own: Any = type("Own", (DeltaMix,), {"apply_update": apply_update, "mixing_formula": None})
    assert (own.mixing_formula, own.bounded_by_weight) == (None, False)
    inherited: Any = type("Inherited", (DeltaMix,), {})
    assert inherited.mixing_formula == "add-delta"
    assert RMSNormalizedDelta.mixing_formula is None


@dataclass(frozen=True)
class Capped(fl.StalenessWeight):
    """A custom weight with a value of any kind."""

    cap: Any = 5.0

    def __call__(self, staleness: int) -> float:
        return 1.0


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.registry.needs])
def test_class_without_the_methods_of_its_kind_names_the_base_class(kind: Kind) -> None:
    with pytest.raises(InputError) as caught:
        kind.registry.resolve(object)
    assert caught.value.field == kind.registry.name
    assert issubclass(getattr(fl, caught.value.hint.rpartition("fedraa.")[2]), kind.base)


@pytest.mark.parametrize("cap", [np.inf, -np.inf, np.nan, np.float32(np.inf), (1.0, np.inf), {"low": [np.nan]}])
def test_value_that_json_cannot_store_is_refused(cap: Any) -> None:
    """The run could not be resumed, because its configuration would not have the value."""
    with refuses("staleness.cap", "config.json"):
        build_run(fl.Experiment(clients=4, updates=4, staleness=Capped(cap)))  # type: ignore[arg-type]
    assert build_run(fl.Experiment(clients=4, updates=4, staleness=Capped(None)))  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [np.nan, np.inf, 1e4, None])
def test_staleness_weight_that_is_not_finite_or_too_large_is_refused(weight: Any) -> None:
    def constant(staleness: int) -> Any:
        return weight

    with refuses("staleness", "constant", "staleness 3", "1000") as caught:
        factor_at(3, constant)
    assert caught.value.got is weight


@pytest.mark.parametrize("result", [None, 0.5, fl.ApplyResult(np.nan), fl.ApplyResult(0.5, new_version="yes")])  # type: ignore[arg-type]
def test_result_that_is_not_a_valid_apply_result_is_refused(result: Any) -> None:
    class Wrong(fl.AsyncRule):
        def apply_update(self, update: Any, model: Any) -> Any:
            return result

    params = np.zeros(2, np.float32)
    arrival = ClientUpdate(0, 0, slice(None), params, params, 0, 1, 0.0)
    with refuses("async_rule", "Wrong", "ApplyResult") as caught:
        checked_apply(Wrong(), arrival, AsyncModel(params, 1, 1))
    assert caught.value.got is result


@pytest.mark.parametrize("result", [torch.zeros(3), None])
def test_compressed_model_of_another_shape_is_refused(result: Any) -> None:
    class Short(fl.Compressor):
        def apply(self, delta: Any, rng: Any) -> Any:
            return result

        def bytes(self, coordinates: int) -> int:
            return 4 * coordinates

    with refuses("schedule.download_compressor", "Short", "[2]") as caught:
        received_buffer(Short(), np.zeros(2, np.float32), np.random.default_rng(0))
    assert caught.value.got is result


def test_unknown_choices_of_a_round_update_are_refused() -> None:
    with refuses("weights", "uniform", "samples", got="loss"):
        Mean(weights="loss")
    with refuses("auxiliary", "RoundState", got="control"):
        Mean(auxiliary="control")  # type: ignore[arg-type]
    with refuses("rule", "adam", "yogi", "adagrad", got="lion"):
        Adaptive("lion")
    with refuses("beta2", "adagrad", got=0.5):
        Adaptive("adagrad", beta2=0.5)
