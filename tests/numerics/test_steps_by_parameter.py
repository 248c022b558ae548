"""Local steps parameter by parameter, for large submodels. They equal steps on the whole buffer."""

from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedraa.client import LocalTraining
from fedraa.client.flat_module import FlatModule
from fedraa.client.input_adversary import ADVERSARY_KEY
from fedraa.client.trainer import Trainer
from fedraa.messages import Task
from fedraa.submodels import flat, flatten_parameters
from fedraa.submodels.tracing.trace import trace_module

RNG = np.random.default_rng(3)
X = RNG.normal(size=(23, 3)).astype(np.float32)
Y = RNG.integers(0, 4, 23)


def traced() -> Any:
    torch.manual_seed(0)
    return trace_module(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)), torch.from_numpy(X[:2]))


def buffer(size: int) -> np.ndarray:
    return RNG.normal(size=size).astype(np.float32)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "terms",
    [
        {"momentum": 0.0},
        {"momentum": 0.9, "prox_mu": 0.5, "weight_decay": 0.1},
        {"control": True, "momentum": 0.5},
        {"grad_mix": 0.3, "weight_decay": 0.1},
        {"compressor": "topk:0.5"},
        {"adversary": True},
    ],
)
def test_steps_by_parameter_equal_steps_on_the_whole_buffer(
    terms: dict[str, Any], masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = traced()
    size = model.size
    extras = {"control": buffer(size), ADVERSARY_KEY: np.concatenate([np.ones(3), np.zeros(3)]).astype(np.float32)}
    if "grad_mix" in terms:
        extras["momentum"] = buffer(size)
    mask = RNG.random(size) < 0.6 if masked else None
    params = flatten_parameters(model.module)
    # Buffers from the object store are read-only.
    params.flags.writeable = False
    task = Task(0, 0, 0, 0, 0, 0, (5,), params, 0.1, 1.0, mask=mask, extras=extras)
    updates = []
    for by_piece, whole in ((10**9, True), (0, False)):
        monkeypatch.setattr(flat, "BY_PIECE", by_piece)
        trainer = Trainer(model, LocalTraining(**terms, batch_size=8, epochs=2), seed=1)
        updates.append(trainer.train(task, X, Y))
        assert trainer._model((5,)).whole is whole
    np.testing.assert_array_equal(updates[0].params, updates[1].params)
    assert updates[0].loss == updates[1].loss
    assert (updates[0].params != params).any()


@pytest.mark.parametrize("terms", [{"sam_rho": 0.1}, {"clip": 1.0}, {"full_gradient": True}, {"squares": True}])
def test_terms_that_need_the_whole_gradient_train_on_the_whole_buffer(
    terms: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flat, "BY_PIECE", 0)
    assert Trainer(traced(), LocalTraining(**terms), seed=1)._model((5,)).whole


class Spare(nn.Module):
    """A module with some parameters that have no effect on the loss, and with one parameter that it uses twice."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.used = nn.Parameter(torch.ones(2)), nn.Parameter(torch.arange(3.0))
        self.after = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.used * self.used).sum()


def test_backward_passes_each_gradient_once_and_zeros_for_unused_parameters() -> None:
    weights = torch.arange(9.0)
    model = FlatModule(Spare(), weights, None)
    pieces: dict[tuple[int, int], list[float]] = {}

    def take(piece: slice, g: Tensor) -> None:
        assert (piece.start, piece.stop) not in pieces
        pieces[piece.start, piece.stop] = g.tolist()
        # The backward pass of the other layers does not read this part of the weights.
        weights[piece] = -1

    model.backward_by_piece(model.module(torch.ones(3)), take)
    # These are d/dw w^2 at 2, 3 and 4.
    assert pieces == {(0, 2): [0, 0], (2, 5): [4, 6, 8], (5, 9): [0, 0, 0, 0]}
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_deleted_model_frees_its_parameters() -> None:
    model = FlatModule(Spare(), torch.zeros(9), None)
    parameter = ref(model.module.used)
    del model
    assert parameter() is None


def test_buffers_grow_only_to_the_size_of_the_largest_submodel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = traced()
    monkeypatch.setattr(flat, "BY_PIECE", model.size)
    trainer = Trainer(model, LocalTraining(), seed=1)
    for widths, weights, gradient in (((2,), 20, 20), ((5,), 44, 20), ((3,), 44, 28)):
        trainer._model(widths)
        assert (len(trainer._weights), len(trainer._gradient)) == (weights, gradient)
