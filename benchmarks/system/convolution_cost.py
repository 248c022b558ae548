"""Measure training steps with and without fedraa's protection against wrong convolutions.

Steps with and without the protection alternate on one thread. The times are CPU times, which other
programs hardly affect. Each pair of adjacent steps has a ratio: the time with the protection divided by the time
without. The table has the median of these ratios, and the ratio of the fastest steps.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from fedraa.models import safe_convolution
from fedraa.models.build import build_model

Made = tuple[nn.Module, Tensor]
REPEATS, QUICK_REPEATS = 30, 2
# Steps of a few milliseconds vary more, so they are repeated more often.
SMALL_REPEATS = 400


def builtin_model(name: str, *shape: int) -> Callable[[], Made]:
    """Return a function that makes a built-in model and a batch for it."""

    def make_model() -> Made:
        x = torch.randn(*shape)
        return build_model(name, x, classes=10), x

    return make_model


def torchvision_resnet50(memory_format: torch.memory_format) -> Callable[[], Made]:
    """Return a function that makes torchvision's ResNet-50 and a small batch in a memory format."""

    def make_model() -> Made:
        model: nn.Module = importlib.import_module("torchvision.models").resnet50()
        x = torch.randn(2, 3, 96, 96)
        # PyTorch's type hints lack this overload.
        model = model.to(memory_format=memory_format)  # type: ignore[call-overload]
        return model, x.contiguous(memory_format=memory_format)

    return make_model


MODELS: dict[str, Callable[[], Made]] = {
    "cnn, 8x8": builtin_model("cnn", 32, 1, 8, 8),
    "cnn, 32x32": builtin_model("cnn", 32, 3, 32, 32),
    "cnn-wide, 32x32": builtin_model("cnn-wide", 16, 3, 32, 32),
    "resnet18, 32x32": builtin_model("resnet18", 8, 3, 32, 32),
    "ResNet-50, 96x96": torchvision_resnet50(torch.contiguous_format),
    "ResNet-50, 96x96, channels_last": torchvision_resnet50(torch.channels_last),
}
QUICK = ("cnn, 8x8",)


def main(*, isa: str, quick: bool) -> None:
    """Measure in a child process, and print a Markdown table.

    The child process is necessary because a process can choose oneDNN's instruction set `isa` only once.
    """
    code = f"from benchmarks.system.convolution_cost import print_table; print_table(quick={quick})"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"ONEDNN_MAX_CPU_ISA": isa})


def print_table(*, quick: bool) -> None:
    """Measure each model and print its row of the table."""
    torch.set_num_threads(1)
    console = Console()
    console.print("| model | step without, ms | step with, ms | median ratio | ratio of the fastest |")
    console.print("| --- | --- | --- | --- | --- |")
    repeats = dict.fromkeys(MODELS, REPEATS) | {name: SMALL_REPEATS for name in MODELS if name.startswith("cnn,")}
    if quick:
        repeats = dict.fromkeys(QUICK, QUICK_REPEATS)
    for name, count in repeats.items():
        model, x = MODELS[name]()
        without, protected = step_times(model, x, count)
        ratio = median(b / a for a, b in zip(without, protected, strict=True))
        fastest = min(protected) / min(without)
        times = f"{1000 * median(without):.2f} | {1000 * median(protected):.2f}"
        console.print(f"| {name} | {times} | {ratio:.3f} | {fastest:.3f} |", soft_wrap=True)


def step_times(model: nn.Module, x: Tensor, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of training steps without and with fedraa's protection against wrong convolutions.

    Steps of both kinds alternate.

    Args:
        model: The model.
        x: A batch.
        repeats: The number of steps of each kind.
    """
    with torch.no_grad():
        classes = model(x).shape[1]
    y = torch.arange(len(x)) % classes
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def time_step() -> float:
        start = time.process_time()
        optimizer.zero_grad()
        torch.autograd.backward([F.cross_entropy(model(x), y)])
        optimizer.step()
        return time.process_time() - start

    without, protected = list[float](), list[float]()
    # PyTorch gets its kernel back when this object is deleted.
    del safe_convolution.protection
    gc.collect()
    for repeat in range(repeats):
        # The first step of each kind includes one-time work.
        steps = [time_step() for _ in range(3)][1:]
        protection = safe_convolution.replace_kernel()
        protected_steps = [time_step() for _ in range(3)][1:]
        del protection
        if repeat:
            without += steps
            protected += protected_steps
    safe_convolution.protection = safe_convolution.replace_kernel()
    return without, protected
