"""Compare random cuts of a torchvision network in `channels_last`, forward and backward, with oneDNN on and off.

The tests run this program in a separate process: `python cuts_in_channels_last.py NETWORK CUTS`. It prints the number
of strided pointwise convolutions with fewer than eight channels that were innermost in memory. In such convolutions
oneDNN overwrites memory.
"""

import sys
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.system.cut_zoo import build_zoo_model
from fedraa.submodels import IndexSet, Traced, trace_module, trainable_parameters

NARROW = 8
TOLERANCE = 0.01


class Counter:
    """A counter of inputs of strided pointwise convolutions with few channels, which are innermost in memory."""

    def __init__(self, module: nn.Module) -> None:
        self.count = 0
        for part in module.modules():
            if isinstance(part, nn.Conv2d) and part.kernel_size == (1, 1) and part.stride != (1, 1):
                part.register_forward_pre_hook(self._look)

    def _look(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        x = inputs[0]
        self.count += 1 < x.shape[1] < NARROW and x.is_contiguous(memory_format=torch.channels_last)


def narrow_cut(traced: Traced, rng: np.random.Generator, widest: int) -> IndexSet:
    """Return a random number of random units of each group, at most `widest` units."""
    chosen = []
    for group in traced.groups:
        width = int(rng.integers(1, min(group.size, widest + 1)))
        chosen.append(np.sort(rng.permutation(group.size)[:width]))
    return tuple(chosen)


def run(module: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the output of a module, and all gradients of a fixed projection of the output."""
    out = module(x)
    along = torch.arange(out.numel()).sin().view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, trainable_parameters(module), along)]


def main(name: str, cuts: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    module, example = build_zoo_model(f"torchvision:{name}")
    traced, rng, count = trace_module(module, example), np.random.default_rng(0), 0
    for number in range(cuts):
        # Every second cut is narrow enough for oneDNN's error.
        widest = NARROW - 1 if number % 2 == 0 else max(group.size for group in traced.groups)
        cut = traced.cut(narrow_cut(traced, rng, widest)).to(memory_format=torch.channels_last).eval()
        counter = Counter(cut)
        x = torch.randn(4, 64, 64, 3).movedim(-1, 1)
        found = run(cut, x)
        with torch.backends.mkldnn.flags(enabled=False):
            expected = run(cut, x)
        for a, b in zip(found, expected, strict=True):
            error, scale = float((a - b).norm()), float(b.norm())
            assert error <= TOLERANCE * scale + 1e-6, f"cut {number}: off by {error:.3g} of {scale:.3g}"
        count += counter.count
    sys.stdout.write(f"narrow inputs: {count}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
