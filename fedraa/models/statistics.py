"""Estimation of the buffers that training changes, such as batch norm's statistics (Diao et al. 2021).

Clients do not send buffers. The server estimates them from the parameters and a fixed set of training samples, so a
resumed run has the same evaluations.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm

from fedraa.data.tree import Tree, list_leaves, map_tree, take_rows
from fedraa.models.computed_weights import is_spectral
from fedraa.models.forward import forward

# Lazy batch norms become one of these classes in their first forward pass.
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# A buffer that still changes after this number of passes is an error.
MAX_PASSES = 1000
# A buffer counts as constant if its distance from the value to which it converges is at most this fraction of the
# buffer's largest entry.
TOLERANCE = 1e-4
# If the largest entry is below this number, this number is used in its place, because of rounding errors.
SMALLEST_SCALE = 1e-3
# A buffer counts as a counter if its changes in two successive passes differ at most by this fraction of the change.
GROWTH_TOLERANCE = 3e-5
MAX_POWER_ITERATIONS = 1000
# The power iteration ends when every entry of the unit vector changes by less than this.
POWER_TOLERANCE = 1e-6

Buffers = Mapping[str, Tensor | None]
Parts = Callable[[], Iterable[Tree]]
"""A function that returns the batches of the training samples, each [b, ...]. Every call returns all of them."""


class Unsettled(Exception):
    """An error about a buffer that changes in every pass over the same samples. The message is the buffer's name."""


def is_norm(part: nn.Module) -> bool:
    """Return True for a batch norm that has running statistics and uses torch's own `forward`."""
    if not isinstance(part, NORMS):
        return False
    return type(part).forward in {kind.forward for kind in NORMS} and part.track_running_stats


def has_statistics(module: nn.Module) -> bool:
    """Return True if the module has a batch norm with running statistics."""
    return any(map(is_norm, module.modules()))


def part_sizes(count: int, batch: int) -> list[int]:
    """Return the sizes of the most even division of `count` samples into parts of at most `batch`."""
    if not count:
        return []
    return [len(rows) for rows in np.array_split(np.arange(count), math.ceil(count / batch))]


def reestimate_statistics(
    module: nn.Module, x: Tree, *, batch: int = 512, estimated: Collection[str] = (), read: Collection[str] = ()
) -> None:
    """Estimate buffers, such as batch norm's statistics, from the samples `x` [n, ...], as `reestimate_over` does.

    Each of the c batches takes every c-th sample. Samples are in the order of the clients. Therefore a batch of
    neighbours would have the labels of only a few clients, and the variance within it would be too small.

    Args:
        module: The module, which is changed in place.
        x: The samples.
        batch: The maximum number of samples in a batch.
        estimated: The names of buffers that training changes, besides those of batch norms.
        read: The names of the `estimated` buffers that evaluation reads.
    """
    count = math.ceil(len(list_leaves(x)[0]) / batch)
    spans = [slice(first, None, count) for first in range(count)]
    reestimate_over(module, lambda: (take_rows(x, span) for span in spans), estimated=estimated, read=read)


def reestimate_over(
    module: nn.Module, parts: Parts, *, estimated: Collection[str] = (), read: Collection[str] = ()
) -> None:
    """Update the buffers of a module as training on `parts` would, without a change of the parameters.

    - Batch norms that train get the mean of the statistics of all batches, in one pass.
    - The `estimated` buffers start from their current values. The batches are repeated until these buffers are
      constant. The result is their mean over the last pass. The value to which a buffer converges is extrapolated, so
      that fewer passes are needed.
    - A buffer that only grows, like a counter, keeps the value that it has after the first pass. If evaluation reads
      such a buffer, all `estimated` buffers keep the values of the last pass, so that they match each other.
    - The vectors of `spectral_norm` become the leading singular vectors of its weight.

    Args:
        module: The module, which is changed in place. Its modes and momenta are restored.
        parts: Returns the batches.
        estimated: The names of buffers that training changes, besides those of batch norms.
        read: The names of the `estimated` buffers that evaluation reads.

    Raises:
        Unsettled: One of the `estimated` buffers never becomes constant.
    """
    settle_spectral(module)
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    norms = [part for part in module.modules() if is_norm(part) and part.training]
    owners = [part for name, part in module.named_modules() if any(_owner_name(buffer) == name for buffer in estimated)]
    if norms or owners:
        with torch.no_grad(), _train_only(module, norms, owners):
            if owners:
                with fixed_random_numbers(module):
                    _settle_buffers(module, norms, parts, frozenset(estimated), frozenset(read))
            else:
                _pass_over(module, parts)
    for part, training in modes:
        part.training = training


def settle_spectral(module: nn.Module) -> None:
    """Set the vectors of every `spectral_norm` to the leading singular vectors of its weight.

    In training these vectors lag behind the weight, because each step makes only one power iteration.
    """
    for layer in module.modules():
        for hook in layer._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                _iterate_power(partial(hook.compute_weight, layer, True), layer, f"{hook.name}_")
        parametrizations = getattr(layer, "parametrizations", None)
        if not isinstance(parametrizations, nn.ModuleDict):
            continue
        for name, steps in parametrizations.items():
            for step in filter(is_spectral, steps.modules()):
                training = step.training
                step.training = True
                _iterate_power(partial(getattr, layer, name), step, "_")
                step.training = training


def copy_buffers(module: nn.Module, names: Collection[str] | None = None) -> dict[str, Tensor | None]:
    """Return copies of the buffers with these names; None means all.

    They include buffers that are None or not in the state dict.
    """
    copies: dict[str, Tensor | None] = {}
    for name, buffer in _all_buffers(module).items():
        if names is None or name in names:
            copies[name] = None if buffer is None else buffer.detach().clone()
    return copies


def _all_buffers(module: nn.Module) -> Buffers:
    """Return all buffers by name, including those that are None or not in the state dict."""
    buffers: dict[str, Tensor | None] = {}
    for prefix, part in module.named_modules():
        buffers |= {f"{prefix}.{own}".lstrip("."): buffer for own, buffer in part._buffers.items()}
    return buffers


def put_buffers(module: nn.Module, values: Buffers) -> None:
    """Set the module's buffers to these values, which may have other shapes.

    A buffer of the same shape is written in place, because the module may have the same tensor under other names.
    """
    if not values:
        return
    parts = dict(module.named_modules(remove_duplicate=False))
    for name, value in values.items():
        prefix, _, own = name.rpartition(".")
        part = parts[prefix]
        buffer = dict(part._buffers.items()).get(own)
        alike = buffer is not None and value is not None and buffer.shape == value.shape and buffer.dtype == value.dtype
        if buffer is not None and value is not None and alike and not buffer.is_inference():
            with torch.no_grad():
                buffer.copy_(value)
        else:
            part._buffers[own] = None if value is None else value.clone()


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the module's buffers at the end of the block. A lazy buffer without a shape is not restored.

    Some modules change buffers even in evaluation mode.
    """
    lazy = {name for name, buffer in module.named_buffers() if is_lazy(buffer)}
    values = copy_buffers(module, _all_buffers(module).keys() - lazy)
    try:
        yield
    finally:
        put_buffers(module, values)


@contextmanager
def fixed_random_numbers(module: nn.Module) -> Iterator[None]:
    """Seed torch's generators with 0 inside the block, and restore their states at its end."""
    devices = {tensor.device.index or 0 for tensor in module.parameters() if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        # torch.manual_seed is slower, because it creates a traceback per kind of device.
        torch.default_generator.manual_seed(0)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(0)
        yield


def _owner_name(buffer: str) -> str:
    return buffer.rpartition(".")[0]


def _iterate_power(update: Callable[[], object], layer: nn.Module, prefix: str) -> None:
    """Call `update` until the vectors of `spectral_norm` are constant.

    Args:
        update: Makes one power iteration.
        layer: The module that holds the vectors as buffers.
        prefix: The start of the names of these buffers.
    """
    with torch.no_grad():
        before = None
        for _ in range(MAX_POWER_ITERATIONS):
            update()
            vectors = [x.clone() for name, x in layer._buffers.items() if x is not None and name.startswith(prefix)]
            if before is not None and all(
                bool((now - last).abs().max() < POWER_TOLERANCE) for now, last in zip(vectors, before, strict=True)
            ):
                return
            before = vectors


@contextmanager
def _train_only(module: nn.Module, norms: Collection[nn.Module], owners: Collection[nn.Module]) -> Iterator[None]:
    """Put only the modules in `norms` and `owners` into training mode inside the block.

    Args:
        module: The module; all its other submodules are put into evaluation mode.
        norms: The batch norms, which average over all batches inside the block.
        owners: The modules with other buffers that training changes.
    """
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()  # type: ignore[operator]
        # With the momentum None, a batch norm computes the mean over all batches.
        norm.momentum = None  # type: ignore[assignment]
    for part in (*norms, *owners):
        part.training = True
    yield
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _pass_over(module: nn.Module, parts: Parts, averaged: Collection[str] = ()) -> dict[str, Tensor]:
    """Pass all batches through the module. Return the mean of some buffers over the batches, as float64.

    Args:
        module: The module.
        parts: Returns the batches.
        averaged: The names of the buffers to average.
    """
    device = next(module.buffers()).device
    sums: dict[str, Tensor] = {}
    count = 0
    for samples in parts():
        forward(module, map_tree(lambda array: torch.tensor(array, device=device), samples))
        count += 1
        for name, value in copy_buffers(module, averaged).items():
            if value is not None and value.is_floating_point():
                total = sums.get(name)
                if total is None or total.shape != value.shape:
                    sums[name] = value.double()
                else:
                    sums[name] = total + value
    return {name: total / count for name, total in sums.items()}


def _settle_buffers(
    module: nn.Module, norms: Collection[nn.Module], parts: Parts, estimated: frozenset[str], read: frozenset[str]
) -> None:
    """Pass the batches through the module until the `estimated` buffers are constant (see `reestimate_over`).

    Args:
        module: The module, in the modes that `_train_only` sets.
        norms: The batch norms. Only the first pass changes their statistics.
        parts: Returns the batches.
        estimated: The names of the buffers.
        read: The names of the `estimated` buffers that evaluation reads.
    """
    states: list[Buffers] = [copy_buffers(module, estimated)]
    first: Buffers | None = None
    growing: set[str] = set()
    ratios = dict.fromkeys(estimated, 0.0)
    for _ in range(MAX_PASSES):
        means = _pass_over(module, parts, estimated)
        for norm in norms:
            # A momentum of 0 keeps the statistics of the first pass.
            norm.momentum = 0.0  # type: ignore[assignment]
        states = [*states[-2:], copy_buffers(module, estimated)]
        first = first or states[-1]
        if len(states) == 3:
            growing = {name for name in estimated if _only_grows(*(state[name] for state in states))}
            for name in estimated - growing:
                ratios[name] = _shrink_ratio(*(state[name] for state in states))
        moving = [
            name for name in estimated - growing if not _is_settled(states[-2][name], states[-1][name], ratios[name])
        ]
        if not moving:
            break
        if len(states) == 3 and not growing & read and any(ratios[name] for name in moving):
            for name in moving:
                ratio = ratios[name]
                last = states[-2][name]
                now = states[-1][name]
                if ratio and last is not None and now is not None:
                    limit = now.double() + (now.double() - last.double()) * ratio / (1 - ratio)
                    put_buffers(module, {name: limit.to(now.dtype)})
            states = [copy_buffers(module, estimated)]
    else:
        raise Unsettled(moving[0])
    if not growing & read:
        values = {name: states[-1][name] for name in estimated} | {name: first[name] for name in growing}
        for name, mean in means.items():
            value = values[name]
            if name not in growing and value is not None and mean.isfinite().all():
                values[name] = mean.to(value.dtype)
        put_buffers(module, values)


def _subtract_buffers(before: Tensor | None, after: Tensor | None) -> Tensor | None:
    """Return the change of a buffer as float64, or None if it is undefined or not finite."""
    if before is None or after is None or before.shape != after.shape or before.is_complex():
        return None
    change = after.double() - before.double()
    if not change.numel() or not change.isfinite().all():
        return None
    return change


def _only_grows(a: Tensor | None, b: Tensor | None, c: Tensor | None) -> bool:
    """Return True if a buffer changes by the same amount in two successive passes.

    Args:
        a: The buffer before the first pass.
        b: The buffer between the passes.
        c: The buffer after the second pass.
    """
    first, second = _subtract_buffers(a, b), _subtract_buffers(b, c)
    if first is None or second is None or not first.any():
        return False
    return bool((second - first).abs().max() <= GROWTH_TOLERANCE * first.abs().max())


def _shrink_ratio(a: Tensor | None, b: Tensor | None, c: Tensor | None) -> float:
    """Return the factor by which a buffer's change shrinks from one pass to the next; 0 if it does not shrink.

    Args:
        a: The buffer before the first pass.
        b: The buffer between the passes.
        c: The buffer after the second pass.
    """
    first, second = _subtract_buffers(a, b), _subtract_buffers(b, c)
    if first is None or second is None or c is None or not c.is_floating_point() or not first.any():
        return 0.0
    ratio = float((first * second).sum() / (first * first).sum())
    if not 0 < ratio < 1:
        return 0.0
    return ratio


def _is_settled(before: Tensor | None, after: Tensor | None, ratio: float) -> bool:
    """Return True if a buffer has almost reached the value to which it converges.

    Args:
        before: The buffer before the last pass.
        after: The buffer after the last pass.
        ratio: The factor by which the buffer's changes shrink from pass to pass.
    """
    if before is None or after is None:
        return before is after
    if before.shape == after.shape and torch.equal(before, after):
        return True
    change = _subtract_buffers(before, after)
    if change is None or not after.is_floating_point():
        return False
    scale = max(float(after.abs().max()), SMALLEST_SCALE)
    return float(change.abs().max()) <= TOLERANCE * scale * (1 - ratio)
