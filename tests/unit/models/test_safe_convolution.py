"""The replacement of PyTorch's backward kernel gives the gradients of the definition, for every convolution."""

import copy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The import replaces the kernel.
import fedraa.models.safe_convolution  # noqa: F401
from benchmarks.system.convolution_cases import quick_cases
from benchmarks.system.convolutions import run_cases

ROOT = Path(__file__).parents[3]


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None, strides: tuple[int, ...], groups: int) -> Tensor:
    """Return a strided pointwise convolution by its definition: a product over channels at each pixel that is read."""
    pixels = x[(..., *(slice(None, None, stride) for stride in strides))]
    parts = [
        torch.einsum("oc,nc...->no...", matrix.flatten(1), part)
        for matrix, part in zip(weight.chunk(groups), pixels.chunk(groups, 1), strict=True)
    ]
    out = torch.cat(parts, 1)
    return out if bias is None else out + bias.view(-1, *[1] * len(strides))


def gradients(out: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    along = torch.arange(out.numel(), dtype=torch.float64).sin().view(out.shape).to(out.dtype)
    return torch.autograd.grad(out, inputs, along)


def nhwc(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1).detach().requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("sides", "strides", "channels", "groups"),
    [
        ((16,), (2,), 4, 1),
        ((17,), (3,), 6, 2),
        ((8, 8), (2, 2), 4, 1),
        ((9, 6), (3, 1), 1, 1),
        ((7, 8), (1, 4), 15, 3),
        ((1, 1), (2, 2), 4, 1),
        ((4, 5, 6), (2, 1, 3), 4, 2),
    ],
)
def test_pointwise_gradients_equal_the_definition(
    sides: tuple[int, ...], strides: tuple[int, ...], channels: int, groups: int, with_bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = nhwc(torch.randn(3, channels, *sides, dtype=dtype))
    weight = torch.randn(2 * channels, channels // groups, *[1] * len(sides), dtype=dtype, requires_grad=True)
    bias = torch.randn(2 * channels, dtype=dtype, requires_grad=True) if with_bias else None
    inputs = [x, weight] if bias is None else [x, weight, bias]
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(sides) - 1]
    result = gradients(convolve(x, weight, bias, stride=strides, groups=groups), inputs)
    for a, b in zip(result, gradients(pointwise(x, weight, bias, strides, groups), inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("stride", "output_padding"), [(2, 0), (2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_gradients_equal_the_definition(stride: int, output_padding: int, groups: int) -> None:
    torch.manual_seed(0)
    x = nhwc(torch.randn(2, 4, 5, 6))
    weight = torch.randn(4, 3, 1, 1, requires_grad=True)
    bias = torch.randn(3 * groups, requires_grad=True)
    options = {"stride": stride, "output_padding": output_padding, "groups": groups}
    result = gradients(F.conv_transpose2d(x, weight, bias, **options), [x, weight, bias])
    spread = torch.cat(
        [
            torch.einsum("co,nchw->nohw", w[:, :, 0, 0], p)
            for w, p in zip(weight.chunk(groups), x.chunk(groups, 1), strict=True)
        ],
        1,
    )
    out = bias.view(-1, 1, 1).expand(2, -1, 4 * stride + 1 + output_padding, 5 * stride + 1 + output_padding).clone()
    out[..., ::stride, ::stride] += spread
    for a, b in zip(result, gradients(out, [x, weight, bias]), strict=True):
        torch.testing.assert_close(a, b)


def test_vmap_script_checkpoint_and_direct_calls_have_the_same_gradients() -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(4, 8, 1, 2)
    x = nhwc(torch.randn(2, 4, 8, 8))
    parameters = list(module.parameters())
    expected = gradients(pointwise(x, *parameters, (2, 2), 1), [x, *parameters])

    def checkpointed(x: Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)

    def vmapped(x: Tensor) -> Tensor:
        return torch.func.vmap(module, randomness="error")(x[:, None])[:, 0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(copy.deepcopy(module))
    for call in (checkpointed, vmapped):
        for a, b in zip(gradients(call(x), [x, *parameters]), expected, strict=True):
            torch.testing.assert_close(a, b)
    for a, b in zip(gradients(scripted(x), [x, *scripted.parameters()]), expected, strict=True):
        torch.testing.assert_close(a, b)
    along = torch.ones(2, 8, 4, 4)
    weight = torch.nn.grad.conv2d_weight(x, module.weight.shape, along, stride=2)
    torch.testing.assert_close(weight, x[..., ::2, ::2].sum((0, 2, 3)).expand(8, 4)[..., None, None].clone())


def test_second_derivative_equals_the_definition() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, 1, 1, dtype=torch.float64, requires_grad=True)

    def second(out: Tensor) -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(out.pow(2).sum(), weight, create_graph=True)
        return torch.autograd.grad(first.pow(3).sum(), [x, weight])

    result = second(F.conv2d(x, weight, stride=2))
    for a, b in zip(result, second(pointwise(x, weight, None, (2, 2), 1)), strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_with_frozen_weights_or_inputs_equal_the_sums() -> None:
    x, weight = torch.randn(2, 3, 4, 4), torch.randn(5, 3, 1, 1)
    (grad,) = torch.autograd.grad(F.conv2d(x, weight.requires_grad_(), stride=2).sum(), weight)
    torch.testing.assert_close(grad[0, :, 0, 0], x[..., ::2, ::2].sum((0, 2, 3)))
    (grad,) = torch.autograd.grad(F.conv2d(x.requires_grad_(), weight.detach(), stride=2).sum(), x)
    torch.testing.assert_close(grad[0, :, 0, 0], weight.sum((0, 2, 3)).detach())
    assert not grad[..., 1::2, :].any()


@pytest.mark.parametrize("transposed", [False, True])
def test_weights_gradients_in_three_dimensions_are_right_in_bfloat16(transposed: bool) -> None:
    torch.manual_seed(0)
    groups = 1 if transposed else 17
    sides = (2, 4, 10) if transposed else (4, 4, 4)
    channels, convolve = (24, F.conv_transpose3d) if transposed else (17, F.conv3d)
    x = torch.randn(17, channels, *sides).bfloat16()
    weight = torch.randn(channels, 33 if transposed else 1, 5, 5, 5).bfloat16().requires_grad_()
    options: dict[str, Any] = {"stride": 1 if transposed else 2, "padding": 2, "groups": groups}
    (result,) = gradients(convolve(x, weight, **options), [weight])
    exact = weight.detach().double().requires_grad_()
    out = convolve(x.double(), exact, **options)
    along = torch.arange(out.numel(), dtype=torch.float64).sin().view(out.shape).bfloat16().double()
    (expected,) = torch.autograd.grad(out, exact, along)
    assert float((result.double() - expected).norm()) < 0.01 * float(expected.norm())


def test_quick_cases_pass_with_the_replaced_kernel() -> None:
    assert run_cases(quick_cases(), isa="AVX2", protect=True) == ["ok"] * len(quick_cases())


@pytest.mark.parametrize("module", ["fedraa.submodels", "fedraa.client"])
def test_packages_that_train_import_the_replaced_kernel(module: str) -> None:
    code = f"import sys, {module}; sys.exit('fedraa.models.safe_convolution' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
