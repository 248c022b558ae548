"""Buffers that training changes: batch norm's statistics (Diao et al. 2021) and others, estimated before an evaluation.

Clients do not send buffers. The server estimates them from the parameters and a fixed sample of training data, so an
evaluation depends on nothing else, and a resumed run gives the same numbers.
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

from fedraa.data.tree import Tree, leaves, mapped, take
from fedraa.models.forward import forward

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)  # the lazy ones turn into these
# Passes over the sample after which a buffer counts as one that keeps changing.
MAX_PASSES = 1000
# Relative distance to the limit at which a buffer counts as settled.
TOLERANCE = 1e-4
# Buffers below this size are compared with it, because their differences are rounding.
SMALLEST_SCALE = 1e-3
# Relative difference of the steps of a buffer that only grows.
GROWTH_TOLERANCE = 3e-5
MAX_POWER_ITERATIONS = 1000
# Largest change of a unit vector's entry in one iteration at which the vector counts as settled.
POWER_TOLERANCE = 1e-6

Buffers = Mapping[str, Tensor | None]
Parts = Callable[[], Iterable[Tree]]
"""Gives the parts of a sample, each [b, ...], as often as it is called."""


class Unsettled(Exception):
    """A buffer keeps changing in every pass over the same samples; the message is its name."""


def is_norm(part: nn.Module) -> bool:
    """Return True for a batch norm that keeps running statistics and has torch's own forward."""
    if not isinstance(part, NORMS):
        return False
    return type(part).forward in {kind.forward for kind in NORMS} and part.track_running_stats


def has_statistics(module: nn.Module) -> bool:
    """Return True if the module has a batch norm whose statistics are to be estimated."""
    return any(map(is_norm, module.modules()))


def part_sizes(count: int, batch: int) -> list[int]:
    """Return the sizes of parts of `count` samples, as equal as possible, of at most `batch` each."""
    return [len(rows) for rows in np.array_split(np.arange(count), math.ceil(count / batch))] if count else []


def reestimate_statistics(
    module: nn.Module, x: Tree, *, batch: int = 512, estimated: Collection[str] = (), read: Collection[str] = ()
) -> None:
    """Call `reestimate_over` with parts of `x` [n, ...], as equal as possible, of at most `batch` samples."""
    ends = np.cumsum(part_sizes(len(leaves(x)[0]), batch)).tolist()
    spans = list(zip([0, *ends], ends, strict=False))
    reestimate_over(
        module, lambda: (take(x, slice(start, end)) for start, end in spans), estimated=estimated, read=read
    )


def reestimate_over(
    module: nn.Module, parts: Parts, *, estimated: Collection[str] = (), read: Collection[str] = ()
) -> None:
    """Replace the buffers that training changes by what training on `parts` would leave in them.

    Only the modules that own these buffers run in training mode. Modes and momenta are as before afterwards.

    - Batch norms get the mean of the statistics of all parts, each part weighted alike, in one pass. A batch norm that
      stays in evaluation mode in training keeps its statistics.
    - The `estimated` buffers start from the values that they have. The parts pass until the buffers stay the same;
      a buffer that moves a fixed share of the way with each part, as a moving average does, is extrapolated. It gets
      its mean over the last pass. A buffer that only grows, as a counter does, gets its value after the first pass,
      unless evaluation reads it: it then stays in step with the others.
    - The vectors of `spectral_norm` become the leading singular vectors of its weight.

    Args:
        module: changed in place.
        parts: gives the sample.
        estimated: names of further buffers that training changes.
        read: those of them that evaluation reads.

    Raises:
        Unsettled: some of the `estimated` buffers never stay the same.
    """
    settle_spectral(module)
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    norms = [part for part in module.modules() if is_norm(part) and part.training]
    owners = [part for name, part in module.named_modules() if any(_owner(buffer) == name for buffer in estimated)]
    if norms or owners:
        with torch.no_grad(), _training(module, norms, owners):
            if owners:
                with fixed_random_numbers(module):
                    _settle(module, norms, parts, frozenset(estimated), frozenset(read))
            else:
                _pass_over(module, parts)
    for part, training in modes:
        part.training = training


def settle_spectral(module: nn.Module) -> None:
    """Give every `spectral_norm` in the module the leading singular vectors of the weight that it has now.

    Training moves them one power iteration per step, from those of another weight.
    """
    for layer in module.modules():
        for hook in layer._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                _iterate(partial(hook.compute_weight, layer, True), layer, f"{hook.name}_")
        if isinstance(chains := getattr(layer, "parametrizations", None), nn.ModuleDict):
            for name, chain in chains.items():
                for link in chain.modules():
                    if is_spectral(link):
                        training, link.training = link.training, True
                        _iterate(partial(getattr, layer, name), link, "_")
                        link.training = training


def is_spectral(part: nn.Module) -> bool:
    """Return True for a layer with the old `spectral_norm`, and for the new one's parametrization."""
    hooks = part._forward_pre_hooks.values()
    return type(part).__name__ == "_SpectralNorm" or any(isinstance(hook, SpectralNorm) for hook in hooks)


def copy_buffers(module: nn.Module, names: Collection[str] | None = None) -> dict[str, Tensor | None]:
    """Return a copy of the named buffers (None: of all), also of those that are None or in no state dict."""
    found: dict[str, Tensor | None] = {}
    for prefix, part in module.named_modules():
        for own, buffer in part._buffers.items():
            name = f"{prefix}.{own}".lstrip(".")
            if names is None or name in names:
                found[name] = None if buffer is None else buffer.detach().clone()
    return found


def put_buffers(module: nn.Module, values: Buffers) -> None:
    """Give the module's buffers these values, whatever shape the buffers have.

    A buffer of the same shape is written in place, because the module may hold it under other names as well.
    """
    parts = dict(module.named_modules(remove_duplicate=False)) if values else {}
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
    """Put the module's buffers back after a trial, because some modules change them in evaluation mode as well.

    A buffer without a shape stays as the trial made it.
    """
    lazy = {name for name, buffer in module.named_buffers() if is_lazy(buffer)}
    names = {
        f"{prefix}.{name}".lstrip(".") for prefix, part in module.named_modules() for name, _ in part._buffers.items()
    }
    values = copy_buffers(module, names - lazy)
    try:
        yield
    finally:
        put_buffers(module, values)


@contextmanager
def fixed_random_numbers(module: nn.Module) -> Iterator[None]:
    """Draw the same random numbers each time, and leave torch's generators as they were."""
    devices = {tensor.device.index or 0 for tensor in module.parameters() if tensor.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        torch.manual_seed(0)
        yield


def _owner(buffer: str) -> str:
    return buffer.rpartition(".")[0]


def _iterate(update: Callable[[], object], layer: nn.Module, prefix: str) -> None:
    """Call `update` until the layer's vectors, whose names start with `prefix`, stay the same."""
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
def _training(module: nn.Module, norms: Collection[nn.Module], owners: Collection[nn.Module]) -> Iterator[None]:
    """Run only these parts in training mode; let the norms keep the mean over all batches."""
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()  # type: ignore[operator]  # torch types it as a tensor
        norm.momentum = None  # type: ignore[assignment]  # a cumulative average
    for part in (*norms, *owners):
        part.training = True
    yield
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _pass_over(module: nn.Module, parts: Parts, averaged: Collection[str] = ()) -> dict[str, Tensor]:
    """Pass the sample through the module; return the mean of the `averaged` buffers after each part, float64."""
    device = next(module.buffers()).device
    sums: dict[str, Tensor] = {}
    count = 0
    for samples in parts():
        forward(module, mapped(lambda array: torch.tensor(array, device=device), samples))
        count += 1
        for name, value in copy_buffers(module, averaged).items():
            if value is not None and value.is_floating_point():
                known = sums.get(name)
                sums[name] = value.double() if known is None or known.shape != value.shape else known + value
    return {name: total / count for name, total in sums.items()}


def _settle(
    module: nn.Module, norms: Collection[nn.Module], parts: Parts, estimated: frozenset[str], read: frozenset[str]
) -> None:
    """Pass the sample until the `estimated` buffers stay the same, as `reestimate_over` says."""
    states: list[Buffers] = [copy_buffers(module, estimated)]
    first: Buffers | None = None
    growing: set[str] = set()
    ratios = dict.fromkeys(estimated, 0.0)
    for _ in range(MAX_PASSES):
        means = _pass_over(module, parts, estimated)
        for norm in norms:
            norm.momentum = 0.0  # type: ignore[assignment]  # it has its statistics
        states = [*states[-2:], copy_buffers(module, estimated)]
        first = first or states[-1]
        if len(states) == 3:
            growing = {name for name in estimated if _grows(*(state[name] for state in states))}
            for name in estimated - growing:
                ratios[name] = _ratio(*(state[name] for state in states))
        moving = [name for name in estimated - growing if not _rests(states[-2][name], states[-1][name], ratios[name])]
        if not moving:
            break
        if len(states) == 3 and not growing & read and any(ratios[name] for name in moving):
            for name in moving:
                ratio, last, now = ratios[name], states[-2][name], states[-1][name]
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


def _difference(before: Tensor | None, after: Tensor | None) -> Tensor | None:
    """Return the change of a buffer, float64; None if it is not a number."""
    if before is None or after is None or before.shape != after.shape or before.is_complex():
        return None
    change = after.double() - before.double()
    return change if change.numel() and bool(change.isfinite().all()) else None


def _grows(a: Tensor | None, b: Tensor | None, c: Tensor | None) -> bool:
    """Return True for a buffer that changes by the same in each of two passes."""
    first, second = _difference(a, b), _difference(b, c)
    if first is None or second is None or not first.any():
        return False
    return bool((second - first).abs().max() <= GROWTH_TOLERANCE * first.abs().max())


def _ratio(a: Tensor | None, b: Tensor | None, c: Tensor | None) -> float:
    """Return the part of its way that a buffer keeps with each pass, 0 if there is none: its steps shrink by that."""
    first, second = _difference(a, b), _difference(b, c)
    if first is None or second is None or c is None or not c.is_floating_point() or not first.any():
        return 0.0
    ratio = float((first * second).sum() / (first * first).sum())
    return ratio if 0 < ratio < 1 else 0.0


def _rests(before: Tensor | None, after: Tensor | None, ratio: float) -> bool:
    """Return True if further passes hardly change a buffer whose steps shrink by this ratio."""
    if before is None or after is None:
        return before is after
    if before.shape == after.shape and torch.equal(before, after):
        return True
    change = _difference(before, after)
    if change is None or not after.is_floating_point():
        return False
    scale = max(float(after.abs().max()), SMALLEST_SCALE)
    return float(change.abs().max()) <= TOLERANCE * scale * (1 - ratio)
