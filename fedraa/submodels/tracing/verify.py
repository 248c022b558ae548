"""Try a cut: does it give what the full module gives when its absent units are silent?"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedraa.data.tree import Tree, mapped
from fedraa.models.forward import forward
from fedraa.submodels.flat import trainable
from fedraa.submodels.traced import IndexSet, Traced
from fedraa.submodels.tracing.accept import first_line
from fedraa.submodels.tracing.recorder import tensors

_RAISED = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64) | dict.fromkeys(
    (torch.complex32, torch.complex64), torch.complex128
)


class Trial:
    """One module, in float64 if it can be, with random parameters, so that none is zero and every difference shows."""

    def __init__(self, traced: Traced, example: Tree) -> None:
        self._template = traced.module
        self._module = copy.deepcopy(traced.module).double()
        self._tolerance = 1e-6  # relative: deep batch norms of two samples amplify rounding
        # numbers in its code may count samples, which shows with more of them; and it may not do without float32
        for rows, double in ((4, True),) * bool(traced.sizes) + ((2, True), (2, False)):
            try:
                self._prepare(example, rows, double)
            except RuntimeError:
                if not double:
                    raise
            else:
                break

    def _prepare(self, example: Tree, rows: int, double: bool) -> None:
        self._double = double
        self._input = mapped(lambda part: _noisy(part, rows, double), example)
        if not double:
            self._tolerance = 1e-3
            self._module.float()
        self._run(self._module, training=False)

    def fails(self, traced: Traced, groups: Collection[int]) -> str | None:
        """Cut these groups to about half, all others left whole. Returns what went wrong, if anything."""
        self._randomise()
        full = dataclasses.replace(traced, module=self._module)
        rng = np.random.default_rng(0)
        indices = tuple(
            np.sort(rng.permutation(group.size)[: _some(group.size, rng)]) if g in groups else np.arange(group.size)
            for g, group in enumerate(traced.groups)
        )
        modes = (False, True)
        small = full.cut(indices)
        if not _is_loaded_skeleton(small, full, indices):
            return "its units differ in a tensor that training does not send"
        try:
            got = [x for training in modes for x in self._run(small, training)]
        except (RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError) as error:
            return f"the code of the module fixes its width ({first_line(error, 80)})"
        _silence(full, full.flat_index(indices))
        expected = [x for training in modes for x in self._run(self._module, training)]
        if len(got) != len(expected) or not all(self._close(a, b) for a, b in zip(got, expected, strict=True)):
            return "its cut gives another output than the full module with absent units silenced"
        return None

    def _close(self, found: Tensor, expected: Tensor) -> bool:
        """Equal but for rounding, in relation to the largest number."""
        if found.shape != expected.shape:
            return False
        apart = found[found != expected] - expected[found != expected]
        scale = expected[expected.isfinite()].abs()
        return not len(apart) or bool(len(scale) and apart.abs().max() <= self._tolerance * scale.max())

    def _randomise(self) -> None:
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p, original in zip(self._module.parameters(), self._template.parameters(), strict=True):
                scale = 0.1 if p.dim() < 2 else 0.5 / (p.numel() / len(p)) ** 0.5
                p.copy_(original).add_(scale * torch.randn(p.shape, generator=random, dtype=p.dtype))

    def _run(self, module: nn.Module, training: bool) -> list[Tensor]:
        with torch.no_grad(), torch.random.fork_rng(), ExitStack() as stack:
            stack.enter_context(WithoutDropout())
            if self._double:
                stack.enter_context(_in_double())
            torch.manual_seed(0)  # stochastic depth draws the same for both
            out = tensors(forward(module.train(training), mapped(lambda part: part.clone(), self._input)))
            return [x if x.is_floating_point() or x.is_complex() else x.double() for x in out]


def _noisy(example: Tensor, rows: int, double: bool) -> Tensor:
    """An input of so many rows, all different where they are floats."""
    part = example[:2].repeat(rows // 2, *(1,) * (example.dim() - 1))
    if part.is_floating_point():
        noise = torch.randn(part.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        part = part.double() + noise
    return part if double else part.to(example.dtype)


class WithoutDropout(TorchFunctionMode):
    """Dropout does nothing: it would draw differently for tensors of different widths."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if "dropout" in name:
            return args[0] if args else kwargs["input"]
        place = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}.get(name)
        if place is not None and len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif place == 4:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


class Double(TorchFunctionMode):
    """Code that asks for a lower precision gets float64, so that rounding never hides a difference."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("float", "half", "bfloat16"):
            func = torch.Tensor.double
        args = tuple(_raised(x) for x in args)
        return func(*args, **{name: _raised(x) for name, x in (kwargs or {}).items()})


def _raised(value: Any) -> Any:
    return _RAISED.get(value, value) if isinstance(value, torch.dtype) else value


@contextmanager
def _in_double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Double():
            yield
    finally:
        torch.set_default_dtype(before)


def _is_loaded_skeleton(small: nn.Module, full: Traced, indices: IndexSet) -> bool:
    """Whether a cut is what its widths and its part of the flat vector alone give."""
    skeleton = full.skeleton(full.widths(indices))
    made, expected = (dict((*x.named_parameters(), *x.named_buffers())) for x in (skeleton, small))
    held = full.units.keys() - set(full.names) - full.estimated
    if not all(torch.equal(made[name], expected[name]) for name in held):
        return False
    flat = full.flat_index(indices)
    for whole, part, offset in zip(trainable(full.module), trainable(small), full.offsets, strict=True):
        first, last = np.searchsorted(flat, (offset, offset + whole.numel()))
        if not torch.equal(whole.reshape(-1)[torch.from_numpy(flat[first:last] - offset)], part.reshape(-1)):
            return False
    return True


def _silence(traced: Traced, kept: np.ndarray) -> None:
    """Set every trainable parameter of the module outside `kept` (a flat index) to zero."""
    mask = torch.zeros(traced.size, dtype=torch.bool)
    mask[torch.from_numpy(kept.copy())] = True
    with torch.no_grad():
        for p, offset in zip(trainable(traced.module), traced.offsets, strict=True):
            p.mul_(mask[offset : offset + p.numel()].view(p.shape))


def _some(size: int, rng: np.random.Generator) -> int:
    return min(size - 1, max(1, round(size * rng.uniform(0.35, 0.75))))
