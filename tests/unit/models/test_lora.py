"""Adapters: their layers, their training, their rank as a width group, and the merge into a plain model."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

import fedraa as fl
from fedraa.client import LocalTraining
from fedraa.client.trainer import Trainer
from fedraa.messages import Task
from fedraa.submodels import flatten_parameters, trace_module
from fedraa.submodels.flat import frozen_parameters
from fedraa.submodels.indices import take_prefix

RANK = 4


class Picture(nn.Module):
    """A convolution, a batch norm, a table that is tied to the head, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(6)
        self.table, self.twice = nn.Embedding(10, 6), nn.Linear(6, 6)
        self.again = self.twice
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x))).mean((2, 3)) + self.table(x.flatten(1).argmax(1) % 10)
        return self.head(self.twice(torch.relu(self.again(h))))


def picture(**more: Any) -> tuple[Picture, nn.Module, Tensor]:
    torch.manual_seed(0)
    plain = Picture()
    return plain, fl.lora(plain, RANK, **more), torch.randn(3, 1, 5, 5)


def trained(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}


def moved(model: nn.Module) -> nn.Module:
    """Return the model with changed adapters."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn(p.shape))
    return model.eval()


def test_lora_trains_only_adapters_which_start_at_zero() -> None:
    plain, model, x = picture()
    before = copy.deepcopy(plain.state_dict())
    assert trained(model) == {
        "conv.lora_A.weight": (4, 1, 3, 3),
        "conv.lora_B.weight": (6, 4, 1, 1),
        "twice.lora_A.weight": (4, 6),
        "twice.lora_B.weight": (6, 4),
        "head.lora_A.weight": (4, 6),
        "head.lora_B.weight": (10, 4),
    }
    assert torch.equal(model.eval()(x), plain.eval()(x))
    assert all(p.requires_grad for p in plain.parameters())
    assert model.get_submodule("conv.base").weight.data_ptr() == plain.conv.weight.data_ptr()
    moved(model)
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("merge", [False, True])
def test_lora_rank_is_a_width_group_with_exact_cuts(merge: bool) -> None:
    """The trial of the tracer checks the cuts: a group that fails it would stay whole."""
    _, model, x = picture(targets=("conv", "table", "twice", "head"), merge=merge, alpha=9)
    traced = trace_module(moved(model), x)
    assert [(group.name, group.size) for group in traced.groups] == [
        (f"{layer}.lora_A", RANK) for layer in ("conv", "table", "twice", "head")
    ]
    small = traced.cut(take_prefix(traced, 0.5))
    assert trained(small)["conv.lora_A.weight"] == (2, 1, 3, 3)
    assert trained(small)["table.lora_A.weight"] == (2, 10)
    shared = {p.data_ptr() for p in frozen_parameters(traced.module)}
    # All shapes share one base.
    assert {p.data_ptr() for p in frozen_parameters(small)} == shared
    vector = flatten_parameters(traced.module)
    assert (flatten_parameters(small) == vector[traced.flat_index(take_prefix(traced, 0.5))]).all()


@pytest.mark.parametrize("merge", [False, True])
def test_merged_is_the_plain_model_with_trained_weights(merge: bool) -> None:
    """Two layers that share a weight get separate weights."""
    plain, model, x = picture(targets=("conv", "table", "twice", "head"), merge=merge, alpha=9)
    back = fl.merged(moved(model)).eval()
    assert back.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(back(x), model(x))
    assert (back(x) - plain.eval()(x)).abs().max() > 0.1


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_merged_copies_a_model_with_computed_weights() -> None:
    model = fl.lora(nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2)), rank=2, train="0")
    x = torch.ones(2, 4)
    model(x).sum().backward()
    torch.testing.assert_close(fl.merged(model)(x), model(x))


def test_merged_weights_get_no_gradient_at_clients() -> None:
    _, model, x = picture(merge=True)
    traced = trace_module(model, x)
    params = flatten_parameters(traced.module)
    task = Task(0, 0, 0, 0, 0, 0, traced.widths(traced.full()), params, 0.5, 1.0)
    y = np.arange(3)
    result = Trainer(traced, LocalTraining(momentum=0.9), seed=0).train(task, x.numpy(), y).params
    still = np.concatenate([np.full(int(np.prod(s)), n.endswith("merged")) for n, s in trained(model).items()])
    assert (result[still] == params[still]).all()
    assert (result[~still] != params[~still]).any()


def test_lora_layers_named_by_train_are_trained_whole() -> None:
    torch.manual_seed(0)
    plain = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5)), "head": nn.Linear(5, 3)})
    model = fl.lora(plain, 2, train="head")
    assert [name for name in trained(model) if "lora" not in name] == ["head.weight", "head.bias"]
    assert model["head"].weight.data_ptr() != plain["head"].weight.data_ptr()  # type: ignore[index,union-attr]
    assert [name for name in trained(model) if "lora_A" in name] == ["body.0.lora_A.weight", "body.1.lora_A.weight"]
    assert [name for name in trained(fl.lora(plain, 2, targets="1")) if "lora_A" in name] == ["body.1.lora_A.weight"]
    assert isinstance(fl.lora(nn.Linear(3, 2), 9), nn.Module)


def test_lora_same_seed_makes_the_same_adapters_and_keeps_torchs_generator() -> None:
    plain = nn.Linear(4, 3)
    state = torch.get_rng_state()
    one, same, other = (fl.lora(plain, 2, seed=seed).lora_A.weight for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.abs().max() <= 0.5


def test_bfloat16_base_gets_float32_adapters() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x.bfloat16()).float()

    model = fl.lora(Half(), 2)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert len(trace_module(model, torch.randn(2, 4)).groups) == 2
    assert fl.merged(model).body[0].weight.dtype == torch.bfloat16  # type: ignore[index,union-attr]


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 6, padding_idx=2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x).sum(1))


def test_lora_padding_entry_stays_zero() -> None:
    """As in torch, the row of the padding entry is 0 and gets no gradient."""
    torch.manual_seed(0)
    model, x = fl.lora(Padded(), RANK, targets="table"), torch.tensor([[1, 2, 2], [3, 4, 2]])
    with torch.no_grad():
        model.get_submodule("table").lora_B.weight.normal_()
    model(x).square().sum().backward()
    gradient = model.get_submodule("table").lora_A.weight.grad
    assert gradient[:, [1, 3, 4]].all()
    assert not gradient[:, 2].any()
    row = fl.merged(model).get_submodule("table").weight
    assert not row[2].any()
    assert row[1].ne(model.get_submodule("table").base.weight[1]).all()
    assert [group.size for group in trace_module(model, x).groups] == [RANK]


def test_lora_accepts_numpy_numbers() -> None:
    model = fl.lora(nn.Linear(4, 3), np.int64(2), alpha=np.float32(3), seed=np.int64(1))
    assert model.lora_A.weight.shape == (2, 4)
    assert model.scale == 1.5


class ByWeight(nn.Module):
    """A module that reads the weight of a layer instead of calling it, as models with tied weights do."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.called = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.called(torch.relu(nn.functional.linear(x, self.read.weight, self.read.bias)))


@pytest.mark.parametrize("merge", [False, True])
def test_weight_that_code_reads_contains_the_adapter(merge: bool) -> None:
    """The rank stays whole, because a product of weights cannot be cut."""
    torch.manual_seed(0)
    model, x = moved(fl.lora(ByWeight(), RANK, merge=merge)), torch.randn(5, 4)
    torch.testing.assert_close(fl.merged(model)(x), model(x))
    traced = trace_module(model, x)
    assert [group.name for group in traced.groups] == ["called.lora_A"]
    assert "read.lora_A" in traced.uncut


def test_lora_in_torchs_encoder_uses_the_adapters() -> None:
    """Torch's encoder reads the weights of its layers directly: always in attention, in evaluation in all layers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = moved(fl.lora(nn.TransformerEncoder(layer, 2), 2))
    x = torch.randn(2, 5, 8)
    assert {name.partition(".lora")[0].split(".")[-1] for name in trained(model)} == {"linear1", "linear2", "out_proj"}
    with torch.inference_mode():
        out = model(x)
        padded = model(x, src_key_padding_mask=torch.tensor([[False] * 5, [False] * 3 + [True] * 2]))
    torch.testing.assert_close(out, model.train()(x))
    torch.testing.assert_close(out, fl.merged(model)(x))
    torch.testing.assert_close(padded[0], out[0])


def test_adapted_model_survives_pickling_and_keeps_attributes() -> None:
    _, model, x = picture()
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.eval()(x), model.eval()(x))
    assert (model.get_submodule("twice").in_features, model.get_submodule("conv").kernel_size) == (6, (3, 3))
    with pytest.raises(AttributeError, match="color"):
        model.get_submodule("twice").color  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "field", "got", "shown"),
    [
        ({"targets": "quary"}, "targets", "quary", "query?"),
        ({"targets": "xyz"}, "targets", "xyz", "query, groups, attention, out_proj"),
        ({"targets": "attention"}, "targets", None, "MultiheadAttention"),
        ({"targets": "groups"}, "targets", None, "2 groups"),
        ({"targets": "query", "train": "query"}, "targets", None, "'query'"),
        ({"targets": (3,)}, "targets", 3, "names of layers"),
        ({"targets": ()}, "targets", None, "Odd"),
        ({"train": "hed"}, "train", "hed", "Odd"),
        ({"rank": 0}, "rank", 0, "1"),
        ({"rank": 2.5}, "rank", 2.5, "1"),
        ({"targets": 3}, "targets", 3, "names of layers"),
        ({"alpha": 0}, "alpha", 0, "over 0"),
        ({"alpha": "8"}, "alpha", "8", "over 0"),
        ({"seed": "a"}, "seed", "a", "64 bits"),
        ({"seed": 2**70}, "seed", 2**70, "64 bits"),
    ],
)
def test_wrong_arguments_of_lora_are_refused(arguments: dict[str, Any], field: str, got: object, shown: str) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.groups = nn.Linear(4, 4), nn.Conv1d(4, 4, 1, groups=2)
            self.attention = nn.MultiheadAttention(4, 2)

    with refuses(field, shown, got=got):
        fl.lora(Odd(), **arguments)


def test_lora_models_without_suitable_layers_are_refused() -> None:
    with refuses("model", got="cnn"):
        # The type is wrong on purpose.
        fl.lora("cnn")  # type: ignore[arg-type]
    with refuses("targets", "ReLU"):
        fl.lora(nn.ReLU())
    with refuses("model", "merged(model)"):
        fl.lora(fl.lora(nn.Sequential(nn.Linear(2, 2))))
    with refuses("model", "Linear", "fedraa.lora"):
        fl.merged(nn.Linear(2, 2))
    with refuses("model", got="cnn"):
        # The type is wrong on purpose.
        fl.merged("cnn")  # type: ignore[arg-type]
    with refuses("model", "'weight'"):
        fl.lora(nn.LazyLinear(2))


def test_adapters_of_peft_are_cut_by_rank() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed, or not usable", exc_type=ImportError)
    from fedraa.aggregation.adapters import find_adapters

    config = peft.LoraConfig(r=RANK, target_modules=["conv", "table", "twice"], modules_to_save=["head"])
    plain = Picture()
    plain.head = nn.Linear(6, 10)
    traced = trace_module(peft.get_peft_model(plain, config), torch.randn(3, 1, 5, 5))
    assert [group.size for group in traced.groups] == [RANK] * 3
    assert [pair.rank for pair in find_adapters(traced)] == [RANK] * 3
    assert all(
        name.endswith(("head.modules_to_save.default.weight", "bias")) for name in traced.names if "lora" not in name
    )
