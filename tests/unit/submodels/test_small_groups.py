"""Layers that Fed-Quilt does not divide, because its fragments would have too few of their units."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedraa as fl
from fedraa import Experiment
from fedraa.cli.plan import describe_uncut_groups
from fedraa.engine.build import build_run
from fedraa.models.vit import VisionTransformer
from fedraa.submodels.policies.slices import BY_MODEL, Fragments
from fedraa.submodels.traced import Traced
from fedraa.submodels.tracing.trace import trace_module

QUILT: dict[str, Any] = {"method": "fed-quilt", "dataset": "digits", "clients": 4, "updates": 8}
QUARTERS = Fragments((0.25,) * 4, min_units=2, min_embedding_units=8)


def trace_perceptron(*hidden: int) -> Traced:
    layers: list[nn.Module] = []
    width = 5
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return trace_module(nn.Sequential(*layers, nn.Linear(width, 3)), torch.zeros(2, 5))


def trace_embedding(width: int) -> Traced:
    words = nn.Sequential(nn.Embedding(11, width), nn.Flatten(), nn.Linear(3 * width, 32), nn.ReLU(), nn.Linear(32, 2))
    return trace_module(words, torch.zeros(2, 3, dtype=torch.long))


def transformer(heads: int) -> VisionTransformer:
    return VisionTransformer((1, 8, 8), 10, depth=1, width=4 * heads, mlp_width=32, heads=heads)


def widths(traced: Traced, policy: Fragments) -> list[list[int]]:
    """Return the numbers of units of each divided layer, for each fragment."""
    return [[len(kept) for kept in part] for part in policy.submodels(policy.choose_groups(traced))]


@pytest.mark.parametrize(
    ("hidden", "expected"),
    [
        ((8, 64), [[2, 16]] * 4),
        ((9, 64), [[3, 16], [2, 16], [2, 16], [2, 16]]),
        # Fragments of 7 units would have 2, 2, 2 and 1. Fragments of 3 units would have 1, 1, 1 and 0.
        ((7, 64), [[16]] * 4),
        ((64, 7, 3), [[16]] * 4),
        # If every layer is small, all are divided as in Fed-RAA.
        ((7, 4), [[2, 1], [2, 1], [2, 1], [1, 1]]),
    ],
)
def test_fragments_have_two_units_of_each_divided_layer(hidden: tuple[int, ...], expected: list[list[int]]) -> None:
    assert widths(trace_perceptron(*hidden), QUARTERS) == expected


def test_smallest_fragment_counts() -> None:
    """Of 10 units, the ratios .1, .2, .3 and .4 give the first fragment one unit. Of 20 units they give it two."""
    policy = Fragments((0.1, 0.2, 0.3, 0.4), min_units=2)
    assert widths(trace_perceptron(10, 20), policy) == [[2], [4], [6], [8]]


@pytest.mark.parametrize(("width", "expected"), [(32, [[8, 8]] * 4), (31, [[8]] * 4), (16, [[8]] * 4)])
def test_fragments_have_eight_elements_of_a_divided_embedding(width: int, expected: list[list[int]]) -> None:
    assert widths(trace_embedding(width), QUARTERS) == expected


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = layer(5, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return out


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_default_is_two_fragments_of_a_recurrent_model_and_four_of_others(layer: type[nn.RNNBase]) -> None:
    traced = trace_module(Recurrent(layer), torch.zeros(2, 4, 5))
    assert widths(traced, Fragments(BY_MODEL)) == [[8]] * 2
    assert widths(traced, QUARTERS) == [[4]] * 4
    assert widths(trace_perceptron(8), Fragments(BY_MODEL)) == [[2]] * 4


@pytest.mark.parametrize(("fields", "fragments"), [({}, 2), ({"fragments": 4}, 4), ({"ratios": (0.25, 0.75)}, 2)])
def test_number_of_fragments_of_a_recurrent_model_can_be_set(fields: dict[str, Any], fragments: int) -> None:
    x, y = torch.randn(42, 4, 5).numpy(), torch.arange(42).numpy() % 3
    data = fl.Dataset("series", x, y, x, y, 3)
    experiment = Experiment(method="fed-quilt", clients=2, **fields)
    spec = build_run(experiment, model=Recurrent(nn.GRU), dataset=data)
    assert len(spec.index_sets) == fragments
    if "ratios" in fields:
        assert [len(kept) for (kept,) in spec.index_sets] == [4, 12]


def test_fed_raa_divides_small_layers() -> None:
    assert widths(trace_perceptron(4, 8), Fragments((0.25,) * 4)) == [[1, 2]] * 4
    assert widths(trace_embedding(4), Fragments((0.25,) * 4)) == [[1, 8]] * 4


@pytest.mark.parametrize(("heads", "divided"), [(2, False), (4, False), (8, True)])
def test_no_fragment_has_a_single_attention_head(heads: int, divided: bool, tmp_path: Path) -> None:
    run = fl.run(**QUILT, model=transformer(heads), engine="local", quiet=True, out=tmp_path / "run")
    assert run.summary["steps"] == 8
    spec = build_run(fl.Experiment(**QUILT), transformer(heads))
    assert [group.size for group in spec.traced.groups] == ([heads, 32] if divided else [32])
    line = "stays whole    blocks.0.attention.query: too few units for 4 fragments"
    assert describe_uncut_groups(spec) == ([] if divided else [line])


def test_chosen_layers_are_divided_although_they_are_small() -> None:
    experiment = fl.Experiment(**QUILT, cut_layers=("blocks.0.attention",))
    sets = build_run(experiment, transformer(4)).index_sets
    assert [[len(kept) for kept in part] for part in sets] == [[1]] * 4
