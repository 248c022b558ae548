"""A check that a submodel computes the right values. It is independent of the check in the package fedraa.

A cut is the set of parameters that a submodel has.
"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.data.tree import Tree, map_tree
from fedraa.models.forward import forward
from fedraa.submodels import IndexSet, Traced, copy_structure, flatten_parameters, load_parameters, trainable_parameters
from fedraa.submodels.tracing.modes import SilentUnits, WithoutDropout, in_double
from fedraa.submodels.tracing.recorder import iterate_tensors

# Relative tolerances by number type.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}


def random_cut(traced: Traced, rng: np.random.Generator) -> IndexSet:
    """Return a random cut. It omits at least one unit of every group of units that can be cut."""
    sizes = [int(rng.integers(1, group.size)) for group in traced.groups]
    return tuple(np.sort(rng.permutation(group.size)[:size]) for group, size in zip(traced.groups, sizes, strict=True))


def check_cut(traced: Traced, example: Tree, indices: IndexSet, seed: int = 0, within: IndexSet | None = None) -> None:
    """Assert that a cut of a model computes the right values.

    In the full module, the check sets all parameters outside the cut to zero. The submodel must then have the outputs
    and gradients of the full module. A worker that has only the submodel's weights must compute the same outputs.
    Writing trained weights back must change exactly the parameters in the cut. The check uses float64, or float32 if
    the module does not support float64.

    Args:
        traced: The traced model.
        example: A batch.
        indices: The cut.
        seed: The seed of the parameters.
        within: A larger cut. If the model is too large, the submodel of this cut replaces the full module.
    """
    try:
        _check_cut(traced, example, indices, seed, within or traced.full(), torch.float64)
    # Some kernels exist only for float32.
    except RuntimeError:
        _check_cut(traced, example, indices, seed, within or traced.full(), torch.float32)


def _check_cut(
    traced: Traced, example: Tree, indices: IndexSet, seed: int, outer: IndexSet, dtype: torch.dtype
) -> None:
    """Check a cut with one dtype. The submodel of the larger cut `outer` takes the place of the full module."""
    rng = torch.Generator().manual_seed(seed)
    traced = dataclasses.replace(traced, module=copy_structure(traced.module))
    _randomise_statistics(traced, rng)
    full, small = (traced.cut(kept) for kept in (outer, indices))
    flat = traced.flat_index(indices)
    whole = traced.flat_index(outer)
    place = np.searchsorted(whole, flat)
    np.testing.assert_array_equal(whole[place], flat)
    np.testing.assert_array_equal(flatten_parameters(small), flatten_parameters(full)[place])
    assert len(flat) == sum(p.numel() for p in trainable_parameters(small)) < len(whole)

    theta = _random_values(full, rng)
    kept = np.zeros(len(theta), dtype=bool)
    kept[place] = True
    load_parameters(small, theta[place])
    load_parameters(full, np.where(kept, theta, np.float32(0)))
    full, small = full.to(dtype), small.to(dtype)
    x = map_tree(lambda part: _random_input(part, rng, dtype), example)
    for training in (False, True):
        outputs, gradients = _run_module(small, x, training, dtype)
        expected, full_gradients = _run_module(full, x, training, dtype)
        for a, b in zip(outputs, expected, strict=True):
            _assert_close(a, b, TOLERANCES[dtype])
        _assert_close(gradients, full_gradients[torch.from_numpy(place)], TOLERANCES[dtype])

    worker = traced.make_skeleton(traced.widths(indices))
    load_parameters(worker, theta[place])
    for a, b in zip(_run_module(worker.to(dtype), x, True, dtype)[0], outputs, strict=True):
        _assert_close(a, b, TOLERANCES[dtype])

    theta[place] += 1
    load_parameters(full, theta)
    if len(whole) == traced.size:
        back = dataclasses.replace(traced, module=full).cut(indices)
        np.testing.assert_array_equal(flatten_parameters(back), theta[place])


def _random_values(module: nn.Module, rng: torch.Generator) -> np.ndarray:
    """Return random parameters with which the activations stay near 1 in magnitude. No parameter is 0 or 1."""
    parts = [np.zeros(0, np.float32)]
    for p in trainable_parameters(module):
        scale = 0.1 if p.dim() < 2 else 0.5 / (p.numel() / len(p)) ** 0.5
        parts.append((p.detach() + scale * torch.randn(p.shape, generator=rng)).reshape(-1).numpy())
    return np.concatenate(parts)


def _randomise_statistics(traced: Traced, rng: torch.Generator) -> None:
    for name, buffer in traced.module.named_buffers():
        if name in traced.estimated:
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=rng))


def _random_input(part: Tensor, rng: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Return noise in the shape of `part`. Return `part` itself if its numbers are not floats."""
    if not part.is_floating_point():
        return part
    return torch.randn(part.shape, generator=rng, dtype=dtype)


def _run_module(module: nn.Module, x: Tree, training: bool, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Return a module's outputs and the gradients `[d]` of a random projection of them."""
    module.train(training)
    double = in_double() if dtype == torch.float64 else nullcontext()
    with torch.random.fork_rng(), WithoutDropout(), SilentUnits(), double:
        torch.manual_seed(0)
        result = forward(module, map_tree(lambda part: part.clone(), x))
        out = [y for y in iterate_tensors(result) if y.requires_grad]
        loss = torch.stack([(y * torch.randn(y.shape, dtype=y.dtype)).sum() for y in out]).sum()
        parameters = trainable_parameters(module)
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return [y.detach() for y in out], torch.cat([g.reshape(-1) for g in gradients])


def _assert_close(values: Tensor, expected: Tensor, tolerance: float) -> None:
    assert values.shape == expected.shape
    error = (values - expected).abs().max()
    scale = expected.abs().max()
    assert error <= tolerance * (1 + scale), f"an error of {error:.3g} with values up to {scale:.3g}"


def grouped_share(traced: Traced) -> float:
    """Return the fraction of a model's parameters that belong to units that can be cut."""
    whole = 0.0
    for name, shape in zip(traced.names, traced.shapes, strict=True):
        fixed = [float((units < 0).mean()) for units in traced.units.get(name, {}).values()]
        whole += float(np.prod(shape)) * float(np.prod(fixed))
    return 1 - whole / traced.size
