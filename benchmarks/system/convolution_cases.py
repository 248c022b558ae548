"""The convolutions to test. Each is tested in a separate process."""

from __future__ import annotations

import json
import math
import multiprocessing
import random
import sys
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing.connection import Connection

import torch
from torch import Tensor
from torch.nn import functional as F

CASE_TIMEOUT_S = 120
TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 0.05}
LAYOUTS = ("contiguous", "channels_last", "permuted", "pixel_shuffle", "pooled")
PASSES = ("training", "evaluation", "vmap", "autocast")


@dataclass(frozen=True)
class Case:
    """A convolution and the batch of random images to which it is applied.

    Attributes:
        sides: The number of pixels of an image along each dimension.
    """

    operator: str = "conv2d"
    in_channels: int = 4
    out_channels: int = 16
    kernel: int = 1
    stride: int = 2
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    sides: tuple[int, ...] = (64, 64)
    batch: int = 4
    layout: str = "permuted"
    weight_layout: str = "contiguous"
    dtype: str = "float32"
    passes: str = "training"
    threads: int = 1

    @property
    def transposed(self) -> bool:
        return "transpose" in self.operator

    @property
    def dimensions(self) -> int:
        return int(self.operator[-2])


def quick_cases() -> list[Case]:
    """Return a few cases.

    Some cases fail on x86 CPUs with AVX2 or AVX-512. The others pass on all CPUs.
    """
    return [
        Case(),
        Case(in_channels=16),
        Case(stride=1, sides=(16, 16)),
        Case(layout="contiguous"),
        Case(operator="conv_transpose2d", in_channels=8, out_channels=4),
    ]


def all_cases(sampled: int) -> list[Case]:
    """Return systematic variants of failing cases, and `sampled` random cases, without duplicates."""
    generator = random.Random(0)
    cases = [*size_cases(), *layout_cases(), *kernel_cases(), *other_operators()]
    cases += [random_case(generator) for _ in range(sampled)]
    return list(dict.fromkeys(cases))


def size_cases() -> list[Case]:
    """Return cases with different channels, image sizes, batch sizes, threads and number types."""
    base = Case()
    in_channels = (*range(1, 18), 20, 24, 31, 32)
    cases = [replace(base, in_channels=n, sides=sides) for n, sides in product(in_channels, ((16, 16), (64, 64)))]
    cases += [replace(base, out_channels=n) for n in (1, 2, 4, 7, 9, 15, 16, 17, 24, 32, 64)]
    cases += [replace(base, sides=(n, n)) for n in (2, 4, 6, 8, 10, 14, 15, 17, 28, 32, 33, 56, 112)]
    cases += [replace(base, sides=sides) for sides in ((8, 128), (128, 8), (2, 512), (64, 66), (63, 64), (1, 64))]
    cases += [replace(base, batch=n) for n in (1, 2, 3, 16, 17)]
    cases += [replace(base, threads=n) for n in (2, 4)]
    cases += [replace(base, dtype=dtype, passes=passes) for dtype, passes in product(TOLERANCES, PASSES)]
    return cases


def layout_cases() -> list[Case]:
    """Return cases with different memory layouts of images and weights."""
    pairs = product(LAYOUTS, ("contiguous", "channels_last"))
    layouts = [replace(Case(), layout=layout, weight_layout=of_weight) for layout, of_weight in pairs]
    cases = [*layouts, *(replace(case, in_channels=12) for case in layouts)]
    cases += [replace(case, kernel=3, stride=s, padding=1) for case, s in product(layouts, (1, 2))]
    return cases


def kernel_cases() -> list[Case]:
    """Return cases with different kernel sizes, strides, paddings, dilations and groups."""
    base = Case()
    cases = []
    for stride, kernel in product((1, 2, 3, 4), (1, 2, 3, 5, 7)):
        case = replace(base, kernel=kernel, stride=stride)
        cases += [replace(case, padding=p, dilation=d) for p, d in product({0, kernel // 2, 1}, (1, 2))]
    cases += [replace(base, groups=g, in_channels=4 * g, out_channels=8 * g) for g in (2, 3, 8)]
    cases += [replace(base, groups=n, in_channels=n, out_channels=n) for n in (2, 4, 8, 16)]
    return cases


def other_operators() -> list[Case]:
    """Return cases of one-dimensional, three-dimensional and transposed convolutions."""
    base = Case()
    cases = []
    images = (("conv1d", (64,)), ("conv1d", (4096,)), ("conv3d", (8, 8, 8)), ("conv3d", (16, 16, 16)))
    layouts = ("contiguous", "channels_last", "permuted")
    passes = ("training", "evaluation", "vmap")
    for (operator, sides), prefix, layout in product(images, ("conv", "conv_transpose"), layouts):
        case = replace(base, operator=operator.replace("conv", prefix), sides=sides, layout=layout)
        cases += [replace(case, kernel=k, padding=k // 2, passes=name) for k, name in product((1, 3), passes)]
    transposed = replace(base, operator="conv_transpose2d", sides=(32, 32))
    channels = (3, 4, 8, 16)
    for n, m, layout in product(channels, channels, ("contiguous", "channels_last")):
        cases.append(replace(transposed, in_channels=n, out_channels=m, layout=layout))
    return cases


def random_case(generator: random.Random) -> Case:
    """Return a case with a random kernel, stride, padding and so on, drawn independently of each other."""
    choose = generator.choice
    operator = choose(["conv1d", "conv2d", "conv2d", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d"])
    sides = {1: (8, 64, 500, 4096), 2: (2, 4, 7, 8, 16, 28, 32, 64), 3: (2, 4, 7, 10)}[int(operator[-2])]
    kernel, groups = choose([1, 1, 1, 2, 3, 5]), choose([1, 1, 1, 2, 3])
    return Case(
        operator=operator,
        in_channels=groups * choose([1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 33]),
        out_channels=groups * choose([1, 2, 4, 5, 8, 12, 16, 24, 33]),
        kernel=kernel,
        stride=choose([1, 2, 2, 3, 4]),
        padding=choose([0, kernel // 2]),
        dilation=choose([1, 1, 2]),
        groups=groups,
        sides=tuple(choose(sides) for _ in range(int(operator[-2]))),
        batch=choose([1, 2, 4, 16]),
        layout=choose(LAYOUTS),
        weight_layout=choose(["contiguous", "contiguous", "channels_last"]),
        dtype=choose(["float32", "float32", "float32", "float64", "bfloat16"]),
        passes=choose(PASSES),
        threads=choose([1, 1, 2]),
    )


def run_child(*, protect: bool) -> None:
    """Read cases from standard input, test each in a forked process, and print the results.

    A forked process is fast, because it need not import PyTorch again. The process tests fedraa's replacement of
    PyTorch's backward pass if `protect` is True, otherwise PyTorch itself.
    """
    if protect:
        # This import installs fedraa's protection.
        import fedraa.models.safe_convolution  # noqa: F401
    context = multiprocessing.get_context("fork")
    for values in json.load(sys.stdin):
        case = Case(**(values | {"sides": tuple(values["sides"])}))
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=send_result, args=(case, sender))
        process.start()
        sender.close()
        process.join(CASE_TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            result = "hung"
        elif process.exitcode == 0:
            result = receiver.recv()
        elif process.exitcode < 0:
            result = "died"
        else:
            raise RuntimeError(f"{case} raised in its process")
        sys.stdout.write(result + "\n")
        sys.stdout.flush()


def send_result(case: Case, sender: Connection) -> None:
    """Test a case in this process, and send the result to the parent process."""
    sender.send(check_case(case))


def check_case(case: Case) -> str:
    """Return `ok` if oneDNN's results are right, otherwise `wrong`. If PyTorch raises an error, return `refused`."""
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    x = lay_out(torch.randn(case.batch, case.in_channels, *case.sides).to(dtype), case.layout)
    rows, columns = case.out_channels, case.in_channels
    if case.transposed:
        rows, columns = columns, rows
    weight = torch.randn(rows, columns // case.groups, *[case.kernel] * case.dimensions).to(dtype)
    weight = lay_out(weight, case.weight_layout)
    bias = torch.randn(case.out_channels).to(dtype)
    try:
        results = compute_results(case, x, weight, bias)
    except RuntimeError:
        return "refused"
    with torch.backends.mkldnn.flags(enabled=False):
        expected = compute_results(case, x, weight, bias)
    tolerance = TOLERANCES["bfloat16" if case.passes == "autocast" else case.dtype]
    for result, right in zip(results, expected, strict=True):
        if not relative_distance(result, right) < tolerance:
            return "wrong"
    return "ok"


def relative_distance(a: Tensor, b: Tensor) -> float:
    """Return the norm of a - b divided by the norm of b. Return infinity instead of NaN."""
    relative = float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-12))
    return math.inf if math.isnan(relative) else relative


def lay_out(x: Tensor, layout: str) -> Tensor:
    """Return a tensor with the values of `x` in the memory layout that the operation `layout` produces."""
    # The memory order is [n, height, width, channels]. The view has PyTorch's order of axes.
    if layout == "permuted" and x.ndim > 2:
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout in ("channels_last", "pixel_shuffle", "pooled") and x.ndim in (4, 5):
        x = x.contiguous(memory_format={4: torch.channels_last, 5: torch.channels_last_3d}[x.ndim])
    if layout == "pixel_shuffle" and x.ndim == 4:
        return F.pixel_shuffle(x.repeat_interleave(4, 1), 2)[..., : x.shape[2], : x.shape[3]].contiguous(
            memory_format=torch.channels_last
        )
    if layout == "pooled" and x.ndim == 4:
        return F.max_pool2d(x, 3, 1, 1)
    return x


def compute_results(case: Case, x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Return a convolution's output and, in training mode, its gradients of input, weight and bias.

    Args:
        case: The case.
        x: The images.
        weight: The kernel.
        bias: The bias.
    """
    options = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation, "groups": case.groups}
    if case.transposed:
        options["output_padding"] = 0
        if case.stride > 1:
            options["output_padding"] = max(case.stride, case.dilation) - 1
    operator = getattr(F, case.operator)

    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = operator(x, weight, bias, **options)
        return result

    if case.passes == "evaluation":
        with torch.inference_mode():
            return [convolve(x, weight, bias)]
    inputs = [x, weight, bias]
    if case.passes == "vmap":
        inputs = [torch.stack([tensor, tensor]) for tensor in inputs]
        convolve_all = torch.func.vmap(convolve)
    else:
        convolve_all = convolve
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=case.passes == "autocast"):
        out = convolve_all(*inputs)
    # All output gradients are positive. With both signs, the bias gradient could be near zero, and a rounding error
    # would look like a wrong result.
    along = torch.arange(out.numel(), dtype=torch.float64).sin().add(1).view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, lay_out(along, case.layout))]
