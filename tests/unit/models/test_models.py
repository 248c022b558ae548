import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedraa import Experiment
from fedraa.models import build_model, set_scaler_rate
from fedraa.models.build import MODELS, refuse_misfit
from fedraa.models.resnet import group_norm
from fedraa.models.scaler import Scaler
from fedraa.models.statistics import reestimate_statistics
from fedraa.models.vit import Attention

CIFAR = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(0, 10_000, (4, 64), generator=torch.Generator().manual_seed(0))


def sample_for(name):
    return TOKENS if name == "fasttext" else CIFAR


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_traces_and_learns(name):
    x, y = sample_for(name), torch.arange(4)
    model = build_model(name, x, 10)
    assert model.training
    traced = torch.fx.symbolic_trace(model.eval())
    with torch.no_grad():
        before = model(x)
        assert torch.equal(traced(x), before)
        # The batch size is not a constant of the trace.
        assert torch.equal(traced(x[:1]), model(x[:1]))
    F.cross_entropy(model(x), y).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data -= 0.001 * parameter.grad
    assert F.cross_entropy(model(x), y) < F.cross_entropy(before, y)


@pytest.mark.parametrize("name", MODELS)
def test_only_the_seed_decides_the_weights_of_a_model(name):
    x = sample_for(name)
    outside = torch.get_rng_state()
    first, same, other = (build_model(name, x, 10, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), outside)
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("mlp", (1, 28, 28), 10, 784 * 200 + 200 + 200 * 10 + 10),
        # RA-Fed uses LeNet-5 from PyTorch's CIFAR-10 tutorial.
        ("cnn", (3, 32, 32), 10, 62_006),
        ("cnn", (1, 8, 8), 10, (25 + 1) * 6 + (150 + 1) * 16 + (64 + 1) * 120 + (120 + 1) * 84 + (84 + 1) * 10),
        # This is the model of Reddi et al. 2021, Table 4.
        ("cnn-emnist", (1, 28, 28), 62, 1_206_590),
        # This is the usual number of parameters of ResNet-18 for CIFAR-10.
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet18-bn", (3, 32, 32), 10, 11_173_962),
        # The norms have 64 + 4*64 + (4+1)*(128 + 256 + 512) channels, each with a scale and a shift.
        ("resnet18-scaler", (3, 32, 32), 10, 11_173_962 - 2 * 4_800),
        # The norms of the stem and of the three shortcuts are missing. If a block widens, its first norm is half as
        # wide. One more norm of 512 channels is at the end.
        ("preact-resnet18", (3, 32, 32), 10, 11_173_962 + 2 * (512 - 64 - 896 - 448)),
        # Outside the blocks are 8x8x3 patches, the class token, 17 positions, a norm and the head.
        ("vit-small", (3, 32, 32), 10, 133_120 + 193 * 64 + 64 + 17 * 64 + 128 + 650),
        ("vit", (3, 32, 32), 100, 5_331_456 + 193 * 192 + 192 + 17 * 192 + 384 + 19_300),
        ("fasttext", (64,), 4, 640_000 + 65 * 128 + 129 * 128 + 129 * 4),
    ],
)
def test_model_has_the_expected_number_of_parameters(name, shape, classes, expected):
    sample = torch.zeros(2, *shape, dtype=torch.int64 if name == "fasttext" else torch.float32)
    assert size(build_model(name, sample, classes)) == expected


def test_transformers_have_the_parameters_and_flops_of_subdismo():
    small, large = build_model("vit-small", CIFAR, 10), build_model("vit", CIFAR, 100)
    # Table 7 gives twice 155.082K - 88.522K.
    assert size(small.blocks) == 133_120
    assert size(large.blocks) == pytest.approx(2 * (5.597e6 - 2.93e6), abs=1e4)
    for model, depth, width, flops in ((small, 4, 64, 336.102e6), (large, 12, 192, 11.876e9)):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(CIFAR.repeat(32, 1, 1, 1))
        # The counter has two per multiply-add.
        counted = counter.get_total_flops() / 2
        if torch.ops.aten._scaled_dot_product_flash_attention_for_cpu not in counter.flop_registry:
            # Attention: two products over 17 x 17 tokens. Newer versions of PyTorch count it themselves.
            counted += 128 * depth * 2 * 17**2 * width
        assert counted == pytest.approx(flops, rel=0.025)


def test_the_mlp_takes_any_widths_and_dropout():
    model = build_model("mlp", torch.zeros(2, 6), 3, hidden=(8, 4), dropout=0.5)
    layers = [type(layer).__name__ for layer in model]
    assert layers == ["Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    assert size(model) == 7 * 8 + 9 * 4 + 5 * 3
    assert size(build_model("mlp", torch.zeros(2, 6), 3, hidden=())) == 7 * 3


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("resnet18-bn", "preact-resnet18", "fasttext")])
def test_small_grey_images_fit_most_models(name):
    model = build_model(name, torch.zeros(2, 1, 8, 8), 10).eval()
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


@pytest.mark.parametrize("name", ["resnet18-bn", "preact-resnet18"])
def test_the_smallest_image_for_batch_norm_trains_on_a_batch_of_one(name):
    model = build_model(name, torch.zeros(2, 1, 9, 9), 10)
    assert model(torch.zeros(1, 1, 9, 9)).shape == (1, 10)


def test_group_norm_can_be_cut_between_any_of_its_groups():
    x = torch.randn(2, 128, 3, 3)
    # Of 32 groups of 4 channels, the cut keeps the groups 5, 6 and 7.
    whole, part = group_norm(128), nn.GroupNorm(3, 12)
    assert torch.allclose(whole(x)[:, 20:32], part(x[:, 20:32]), atol=1e-6)


def test_attention_is_multi_head_attention_without_biases():
    attention = Attention(width=12, heads=4, head_dim=3)
    reference = nn.MultiheadAttention(12, 4, bias=True, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(
            torch.cat([attention.query.weight, attention.key.weight, attention.value.weight])
        )
        reference.in_proj_bias.zero_()
        reference.out_proj.load_state_dict(attention.out.state_dict())
    x = torch.randn(2, 5, 12)
    assert torch.allclose(attention(x), reference(x, x, x, need_weights=False)[0], atol=1e-6)


def test_whole_heads_can_be_cut_from_attention():
    whole, part = Attention(12, heads=4, head_dim=3), Attention(12, heads=2, head_dim=3)
    assert (whole.heads, part.heads) == (4, 2)
    # These are the units of heads 0 and 3.
    kept = torch.tensor([0, 1, 2, 9, 10, 11])
    with torch.no_grad():
        for mine, its in ((part.query, whole.query), (part.key, whole.key), (part.value, whole.value)):
            mine.weight.copy_(its.weight[kept])
        part.out.weight.copy_(whole.out.weight[:, kept])
        part.out.bias.copy_(whole.out.bias)
        whole.out.weight[:, 3:9] = 0
    x = torch.randn(2, 5, 12)
    assert torch.allclose(whole(x), part(x), atol=1e-6)


def test_fasttext_counts_padding_only_in_the_length_and_wraps_large_ids():
    model = build_model("fasttext", TOKENS, 4)
    short = torch.tensor([[5, 7, 0, 0]])
    expected = model.layers((model.embedding.weight[5] + model.embedding.weight[7]) / 4)
    assert torch.allclose(model(short)[0], expected, atol=1e-6)
    assert torch.equal(model(short + 10_000), model(short))


def test_the_scaler_divides_in_training_only():
    model = build_model("resnet18-scaler", CIFAR, 10)
    scalers = [part for part in model.modules() if isinstance(part, Scaler)]
    # Each convolution has one scaler.
    assert len(scalers) == 20
    set_scaler_rate(model, 0.25)
    assert scalers[7].train()(torch.tensor(3.0)) == 12.0
    assert scalers[7].eval()(torch.tensor(3.0)) == 3.0
    assert build_model("resnet18-scaler", CIFAR, 10)[1].rate == 1.0
    with refuses("rate", got=0):
        set_scaler_rate(model, 0)


def test_batch_norm_statistics_are_the_mean_over_equal_parts():
    x = torch.randn(9, 2) * torch.tensor([1.0, 5.0]) + torch.tensor([3.0, -2.0])
    model = nn.Sequential(nn.BatchNorm1d(2, momentum=0.3), nn.Dropout(0.5), nn.BatchNorm1d(2, affine=False))
    model[1].eval()
    # These statistics must be discarded.
    model(x + 100)
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    reestimate_statistics(model, x.numpy(), batch=4)
    # The parts are equal, not 4 + 4 + 1, and each has every third sample.
    parts = (x[::3], x[1::3], x[2::3])
    assert torch.allclose(model[0].running_mean, torch.stack([part.mean(0) for part in parts]).mean(0), atol=1e-5)
    assert torch.allclose(model[0].running_var, torch.stack([part.var(0) for part in parts]).mean(0), rtol=1e-5)
    # The second norm sees each part normed by itself: variance 4 * (2/3) * (3/2) without bias correction of three.
    assert torch.allclose(model[2].running_mean, torch.zeros(2), atol=1e-5)
    assert torch.allclose(model[2].running_var, torch.full((2,), 4 * 3 / 2), rtol=1e-3)
    assert [part.training for part in model] == [True, False, True]
    assert [model[0].momentum, model[2].momentum] == [0.3, 0.1]


def test_statistics_of_sorted_samples_have_the_variance_of_all_samples():
    """Two clients have the samples 0 to 99 and 100 to 199. The variance within a client is a quarter of that of all."""
    x = np.arange(200, dtype=np.float32)[:, None]
    model = nn.Sequential(nn.BatchNorm1d(1))
    reestimate_statistics(model, x, batch=100)
    assert float(model[0].running_mean) == pytest.approx(x.mean())
    assert float(model[0].running_var) == pytest.approx(x.var(), rel=0.02)


def test_statistics_of_a_model_without_batch_norm_do_not_change():
    class Untouchable(nn.Module):
        def forward(self, x):
            raise AssertionError("was run")

    reestimate_statistics(nn.Sequential(Untouchable(), nn.GroupNorm(1, 2)), np.zeros((3, 2)))


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "userland.py").write_text(
        "from torch import nn\n"
        "def sized(classes): return nn.Linear(6, classes)\n"
        "def fixed(): return nn.Linear(6, 3)\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self): super().__init__(5, 3)\n"
        "def odd(): return 3\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("userland", None)


@pytest.mark.usefixtures("user_module")
def test_build_model_accepts_a_custom_path():
    x = torch.zeros(2, 6)
    assert size(build_model("userland:sized", x, 4)) == 28
    assert size(build_model("userland:fixed", x, 3)) == 21
    first, same = (build_model("userland:fixed", x, 3, seed=5).weight for _ in range(2))
    assert torch.equal(first, same)


def made(classes):
    return nn.Linear(6, classes)


class Given(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)


def test_build_model_accepts_a_function_or_a_class():
    x = torch.zeros(2, 6)
    assert size(build_model(made, x, 4)) == 28
    assert size(build_model(Given, x, 3)) == 21
    assert torch.equal(build_model(made, x, 4).weight, build_model(f"{__name__}:made", x, 4).weight)
    assert Experiment(model=made).model_dump(mode="json")["model"] == f"{__name__}:made"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (Given(), "model=..."),
        (3, "got 3;"),
        ([nn.Linear(6, 4)], "nn.Sequential(*layers)"),
        (nn.Linear(6, 4).state_dict(), "load_state_dict"),
        (Path("net.pt"), "load_state_dict"),
    ],
)
def test_build_model_unsuitable_object_is_refused(source, shown):
    with refuses("model", shown):
        build_model(source, torch.zeros(2, 6), 4)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (lambda a, b: 3, "'a'"),
        (lambda: 3, "got 3;"),
        (lambda: 1 / 0, "ZeroDivisionError.*test_models.py, line "),
        (nn.Linear, "'in_features'"),
        ("__main__:absent", "__main__:absent"),
    ],
)
def test_build_model_unsuitable_function_is_refused(source, shown):
    with pytest.raises(ValueError, match=f"^model.*{shown}"):
        build_model(source, torch.zeros(2, 6), 4)


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize(
    ("name", "field", "shown"),
    [
        ("userland:fixed", "model 'userland:fixed'", "[2, 3]"),
        ("userland:Net", "model 'userland:Net'", "mat1 and mat2"),
        ("userland:odd", "model 'userland:odd'", "got 3;"),
        ("userland:number", "model", "got 3;"),
        ("lenet", "model", "mlp, cnn, "),
        ("weights/net.safetensors", "model", "load_state_dict"),
        ("google/vit-base-patch16-224", "model", "nn.Module"),
        ("cnn", "model 'cnn'", "[6]"),
    ],
)
def test_build_model_unsuitable_name_is_refused_in_one_line(name, field, shown):
    with refuses(field, shown) as caught:
        build_model(name, torch.zeros(2, 6), 4)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("user_module")
@pytest.mark.parametrize("name", ["userland:absent", "no_such_package:make", ":make"])
def test_a_path_that_cannot_be_imported_is_refused(name):
    with refuses("model", got=name):
        build_model(name, torch.zeros(2, 6), 4)


@pytest.mark.parametrize(
    ("name", "options", "shape", "field", "shown"),
    [
        ("mlp", {"hidden": (4, 0)}, (1, 8, 8), "hidden", "(4, 0)"),
        ("mlp", {"dropout": 1.0}, (1, 8, 8), "dropout", "1.0"),
        ("cnn", {"dropout": 0.5}, (1, 8, 8), "dropout", "0.5"),
        ("resnet18", {"hidden": (64,)}, (1, 8, 8), "hidden", "(64,)"),
        ("resnt18", {"hidden": (8,)}, (1, 8, 8), "model", "resnet18?"),
        ("resnt18", {"dropout": 0.5}, (1, 8, 8), "model", "resnet18?"),
        ("cnn-wide", {}, (1, 8, 7), "model 'cnn-wide'", "8"),
        ("resnet18-bn", {}, (1, 8, 8), "model 'resnet18-bn'", "9"),
        ("vit", {}, (1, 9, 8), "model", "[9, 8]"),
        ("fasttext", {}, (1, 8, 8), "model 'fasttext'", "[1, 8, 8]"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(name, options, shape, field, shown):
    with refuses(field, shown):
        build_model(name, torch.zeros(2, *shape), 10, **options)


@pytest.mark.parametrize(
    ("tokens", "shown"), [(torch.tensor([[6, 1]]), "num_embeddings"), (torch.tensor([[0.5, 1.0]]), "x.astype('int64')")]
)
def test_samples_that_an_embedding_does_not_take_are_refused_with_the_remedy(tokens, shown):
    with refuses("model", shown) as caught:
        refuse_misfit("model", nn.Embedding(6, 4), tokens, lambda _: None)
    assert "float32" not in str(caught.value)
