"""State that training changes in a model: buffers that are estimated, harmless state, and state that is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver, MovingAverageMinMaxObserver

from fedraa.client.state_probe import probe_state
from fedraa.client.training_state import TrainingState
from fedraa.objectives import Classification
from tests.changing_modules import (
    WIDTH,
    AlwaysNorm,
    Codebook,
    DebiasedNorm,
    FrozenNorm,
    HookedLayer,
    Logger,
    MovingNorm,
    Queue,
    ReadingNorm,
    ReplacingNorm,
    Rotation,
    Squeezed,
    SummingNorm,
    Teacher,
    UnregisteredNorm,
    WarmUp,
)


def probe_layers(*layers: nn.Module) -> TrainingState:
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 3))
    return probe_state(model, torch.randn(16, WIDTH) * 3 + 5, Classification().outputs)


@pytest.mark.parametrize(
    ("layer", "estimated", "read"),
    [
        (MovingNorm, {"0.mean", "0.var"}, {"0.mean", "0.var"}),
        (ReplacingNorm, {"0.mean", "0.var", "0.count"}, {"0.mean", "0.var"}),
        (DebiasedNorm, {"0.mean", "0.count"}, {"0.mean", "0.count"}),
        (SummingNorm, {"0.sum", "0.count"}, {"0.sum", "0.count"}),
        (lambda: HookedLayer("outputs"), {"0.outputs"}, {"0.outputs"}),
        (Logger, {"0.samples"}, set()),
        (MinMaxObserver, {"0.min_val", "0.max_val"}, {"0.min_val", "0.max_val"}),
        (MovingAverageMinMaxObserver, {"0.min_val", "0.max_val"}, {"0.min_val", "0.max_val"}),
        (Rotation, set(), set()),
        (lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)), set(), set()),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), set(), set()),
    ],
)
def test_probe_lists_the_buffers_to_estimate(
    layer: Callable[[], nn.Module], estimated: set[str], read: set[str]
) -> None:
    state = probe_layers(layer())
    assert (set(state.estimated), set(state.read)) == (estimated, read)
    assert state.changes
    assert not state.restored


@pytest.mark.parametrize("layer", [nn.Tanh, lambda: nn.BatchNorm1d(WIDTH), lambda: FrozenNorm(WIDTH), nn.Dropout])
def test_probe_finds_no_state_in_torch_layers(layer: Callable[[], nn.Module]) -> None:
    state = probe_layers(layer())
    assert (state.estimated, state.changes, state.warnings) == ((), (), ())


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (Codebook, "'codes' of Codebook"),
        (lambda: Codebook(0.5), "'codes' of Codebook"),
        (ReadingNorm, "'mean' of ReadingNorm"),
        (Teacher, "buffer 'average' of Teacher"),
        (lambda: Teacher(frozen=True), "parameter 'average' of Teacher"),
        (WarmUp, "buffer 'steps' of WarmUp"),
        (lambda: WarmUp(attribute=True), "attribute 'steps' of WarmUp"),
        (Queue, "'queue' of Queue"),
        (UnregisteredNorm, "attribute 'mean' of UnregisteredNorm"),
        (lambda: MovingNorm(persistent=False), "persistent=True"),
        (lambda: HookedLayer("gradients"), "'gradients' of HookedLayer"),
    ],
)
def test_probe_refuses_state_with_memory(layer: Callable[[], nn.Module], named: str) -> None:
    with refuses("model", named):
        probe_layers(layer())


@pytest.mark.parametrize("kind", ["tensor", "array", "list"])
def test_probe_refuses_a_class_attribute_that_training_changes(kind: str) -> None:
    class Mean(nn.Module):
        center: Any = {"tensor": torch.zeros(WIDTH), "array": np.zeros(WIDTH), "list": [torch.zeros(WIDTH)]}[kind]
        scale = torch.ones(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                value = Mean.center[0] if kind == "list" else Mean.center
                value += 0.1 * x.detach().mean(0).numpy() if kind == "array" else 0.1 * x.detach().mean(0)
            return x * self.scale

    with refuses("model", "'center' of Mean"):
        probe_layers(Mean())


def test_probe_ignores_a_constant_class_attribute() -> None:
    class Scaled(nn.Module):
        scale = torch.ones(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return x * Scaled.scale

    assert probe_layers(Scaled()).changes == ()


def test_probe_compares_buffers_of_eight_bits() -> None:
    class Coarse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(WIDTH).to(torch.float8_e4m3fn))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale.float()

    assert probe_layers(Coarse()).changes == ()


def test_probe_restores_a_buffer_that_evaluation_changes_and_warns() -> None:
    state = probe_layers(AlwaysNorm())
    assert state.restored
    assert any("evaluation changes the buffer 'mean'" in warning for warning in state.warnings)


def test_probe_warns_about_a_norm_without_running_statistics() -> None:
    state = probe_layers(nn.BatchNorm1d(WIDTH, track_running_stats=False))
    assert len(state.warnings) == 1
    assert (state.min_batch, state.min_eval_batch) == (2, 2)


def test_probe_leaves_generators_and_the_model_unchanged() -> None:
    model = nn.Sequential(MovingNorm(), nn.Dropout(), nn.Linear(WIDTH, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    probe_state(model, torch.randn(16, WIDTH, generator=torch.Generator()), Classification().outputs)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "training", "evaluation"),
    [
        (lambda: nn.Linear(WIDTH, 3), 1, 1),
        (lambda: nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)), 2, 1),
        (Squeezed, 2, 2),
        # The variance of one sample is NaN.
        (lambda: nn.Sequential(MovingNorm(), nn.Linear(WIDTH, 3)), 2, 1),
        (lambda: nn.Sequential(FakeQuantize(), nn.Linear(WIDTH, 3)), 1, 1),
    ],
)
def test_probe_finds_the_smallest_batch(model: Callable[[], nn.Module], training: int, evaluation: int) -> None:
    state = probe_state(model(), torch.randn(8, WIDTH), Classification().outputs)
    assert (state.min_batch, state.min_eval_batch) == (training, evaluation)
