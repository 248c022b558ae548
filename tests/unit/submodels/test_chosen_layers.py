"""The choice of the layers that are cut: all other layers stay whole in every submodel."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

import fedraa as fl
from fedraa.engine.build import build_run
from fedraa.models import build_model
from fedraa.submodels import Traced
from fedraa.submodels.flat import flatten_parameters
from fedraa.submodels.indices import count_owners, make_fragments
from fedraa.submodels.tracing.trace import trace_module


class Numbers(nn.Module):
    """A model whose code has widths as numbers: a view of 6 heads of 2, and of two layers of 4 and 6 units joined."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(3, 12)
        self.merge = nn.Linear(12, 5)
        self.left = nn.Linear(5, 4)
        self.right = nn.Linear(5, 6)
        self.out = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.heads(x).relu().view(-1, 6, 2)
        merged = self.merge((heads * heads.mean(2, keepdim=True)).view(-1, 12))
        joined = torch.cat([self.left(merged), self.right(merged)], 1).relu().view(-1, 10)
        return self.out(joined)


EXAMPLE = torch.zeros(2, 3)


def cut_differs(traced: Traced, module: nn.Module, kept: tuple[np.ndarray, ...]) -> float:
    """Return the largest difference between a cut's outputs and those of the full module with zeros for the others."""
    index = traced.flat_index(kept)
    whole = torch.zeros(traced.size)
    whole[index] = torch.from_numpy(flatten_parameters(module))[index]
    torch.nn.utils.vector_to_parameters(whole, module.parameters())
    cut = traced.make_skeleton(traced.widths(kept))
    torch.nn.utils.vector_to_parameters(whole[index], cut.parameters())
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    return float((cut.eval()(x) - module.eval()(x)).detach().abs().max())


@pytest.mark.parametrize("pattern", ["heads", "merge", "left", "right", "[lr]*", "*"])
def test_cut_of_chosen_layers_equals_the_model_with_absent_units_at_zero(pattern: str) -> None:
    torch.manual_seed(0)
    module = Numbers()
    traced = trace_module(module, EXAMPLE)
    sizes = {"heads": 6, "merge": 5, "left": 4, "right": 6}
    assert {group.name: group.size for group in traced.groups} == sizes
    chosen = traced.match_groups([pattern])
    names = {"[lr]*": ["left", "right"], "*": list(sizes)}.get(pattern, [pattern])
    assert [group.name for group in chosen.groups] == names
    kept = tuple(np.array([0, 2]) for _ in names)
    full = [np.array([0, 2]) if name in names else np.arange(size) for name, size in sizes.items()]
    np.testing.assert_array_equal(chosen.flat_index(kept), traced.flat_index(tuple(full)))
    assert cut_differs(chosen, module, kept) < 1e-6


def test_unknown_layer_is_refused() -> None:
    with refuses("cut_layers", "merge", got="merged"):
        trace_module(Numbers(), EXAMPLE).match_groups(["merged"])


@pytest.mark.parametrize(("layers", "untrained"), [(None, 13_134), (["7"], 0), (["0", "7"], 0)])
def test_layers_between_chosen_ones_are_trained_in_every_fragment(layers: list[str] | None, untrained: int) -> None:
    """If every layer of the CNN is cut in 5, 13,134 of 21,386 parameters belong to no fragment; else all have one."""
    image = torch.zeros(2, 1, 8, 8)
    traced = trace_module(build_model("cnn", image, 10, seed=0), image)
    assert traced.size == 21_386
    if layers is not None:
        traced = traced.match_groups(layers)
    owners = count_owners(traced, make_fragments(traced, (0.05, 0.1, 0.2, 0.3, 0.35)))
    assert (owners == 0).sum() == untrained


def test_option_cut_layers_reaches_the_run() -> None:
    flags: dict[str, Any] = {"model": "cnn", "fragments": 3, "engine": "local", "quiet": True}
    run = build_run(fl.Experiment(method="fed-raa", cut_layers=["7"], **flags))
    # The sizes are 20, 30 and 50 % of 120 units.
    assert [submodel.widths for submodel in run.submodels] == [(24,), (36,), (60,)]
    with refuses("cut_layers"):
        build_run(fl.Experiment(method="fedavg", cut_layers=["7"], engine="local", model="cnn"))
