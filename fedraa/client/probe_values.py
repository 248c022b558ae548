"""Values with which `state_probe.py` tries out a model, and comparisons of the results."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.models.statistics import fixed_random_numbers

Results = tuple[list[Tensor], list[Tensor]]
"""The outputs of a module, and the gradients of its parameters."""


def perturb_parameters(module: nn.Module) -> nn.Module:
    """Change the trainable parameters slightly, as a training step would."""
    generator = torch.Generator().manual_seed(0)
    for p in module.parameters():
        if p.requires_grad:
            noise = torch.rand(p.shape, generator=generator).to(p)
            p.data = p.data * (1 + 0.1 * noise) + 0.01 * noise
    return module


def shift_values(part: Tensor) -> Tensor:
    """Return a tensor of the same type and shape with other values."""
    if part.is_floating_point():
        return part * 1.5 + 0.5
    return part.flip(0)


def enlarge_values(part: Tensor) -> Tensor:
    """Return ten times the values. Integers stay the same, because they may be indices."""
    if part.is_floating_point():
        return part * 10
    return part


@contextmanager
def fixed_generators(module: nn.Module) -> Iterator[None]:
    """Seed the random generators of Python, NumPy, PyTorch and the module in the `with` block."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        random.seed(0)
        np.random.seed(0)
        with fixed_random_numbers(module):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def are_alike(results: Results | None, expected: Results | None) -> bool:
    """Return True if outputs and gradients are equal except for rounding."""
    if results is None or expected is None:
        return results is expected
    tensors = [*results[0], *results[1]]
    expected_tensors = [*expected[0], *expected[1]]
    if len(tensors) != len(expected_tensors):
        return False
    pairs = zip(tensors, expected_tensors, strict=True)
    return all(a.shape == b.shape and are_close(a, b, 1e-5) for a, b in pairs)


def are_close(values: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Return True if the values equal the expected values up to rounding.

    Args:
        values: The values.
        expected: The expected values.
        tolerance: The largest difference, relative to the largest expected value.
    """
    if not expected.numel() or values.is_complex():
        return bool(torch.equal(values, expected))
    scale = float(expected.nan_to_num(0, 0, 0).abs().double().max())
    return torch.allclose(
        values.double(), expected.double(), rtol=tolerance, atol=tolerance * scale + 1e-12, equal_nan=True
    )
