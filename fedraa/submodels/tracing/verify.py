"""Try a cut: does it give what the full module gives when its absent units are silent?"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedraa.data.tree import Tree, mapped
from fedraa.models.forward import forward
from fedraa.submodels.flat import trainable
from fedraa.submodels.resize import GROUPED, grouped_product, name_of
from fedraa.submodels.traced import IndexSet, Traced
from fedraa.submodels.tracing.accept import first_line
from fedraa.submodels.tracing.recorder import tensors

_RAISED = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64) | dict.fromkeys(
    (torch.complex32, torch.complex64), torch.complex128
)

MASKED = 1e5  # times the smallest number of an output: what is larger says nothing about the others
ROUNDING = 1e3  # times the precision of the largest number: what is smaller may be 0 but for rounding
NARROW = 3  # units of each group of a large module that is tried


class Trial:
    """One module, in float64 if it can be, with random parameters, so that none is zero and every difference shows.

    Of a `large` module not the whole is compared with a cut, but a narrow cut with a narrower one; that the narrow one
    does what the whole does shows in the functions that ran, `ran` in evaluation and training mode, if known.
    """

    def __init__(
        self, traced: Traced, example: Tree, ran: Sequence[Sequence[str]] = (), *, large: bool = False
    ) -> None:
        self._tolerance = 1e-6  # relative: deep batch norms of two samples amplify rounding
        self._large, self._ran = large, ran
        try:
            self._prepare(traced, example)
        except RuntimeError:
            if not large:
                raise
            self._large = False
            self._prepare(traced, example)

    def _prepare(self, traced: Traced, example: Tree) -> None:
        base = self._whole(traced, self._base(traced, range(len(traced.groups))))
        # numbers in its code may count samples, which shows with more of them; and it may not do without float32
        for rows, double in ((4, True),) * bool(traced.sizes) + ((2, True), (2, False)):
            self._double, self._input = double, mapped(partial(_noisy, rows=rows, double=double), example)
            if not double:
                self._tolerance = 1e-3
            try:
                self._run(base.to(torch.float64 if double else torch.float32), training=False)
            except RuntimeError:
                if not double:
                    raise
            else:
                break

    def fails(self, traced: Traced, groups: Collection[int]) -> str | None:
        """Cut these groups to about half, all others left whole, then to one unit each. Returns what went wrong.

        One unit is what code treats in another way that squeezes its tensors, or asks how wide they are; it is tried in
        evaluation mode alone.
        """
        traced, rng = dataclasses.replace(traced), np.random.default_rng(0)  # less what it remembers
        outer = self._base(traced, groups)
        half = tuple(
            np.sort(rng.permutation(kept)[: _some(len(kept), rng)]) if g in groups else kept
            for g, kept in enumerate(outer)
        )
        one = tuple(rng.permutation(kept)[:1] if g in groups else kept for g, kept in enumerate(half))
        return self._differ(traced, outer, half) or self._differ(traced, half, one, modes=(False,))

    def _differ(
        self, traced: Traced, outer: IndexSet, inner: IndexSet, modes: Sequence[bool] = (False, True)
    ) -> str | None:
        """What is wrong with a cut within a larger one, of which all that is not in it is silent."""
        small, base = traced.cut(inner), self._whole(traced, outer)
        if not _is_loaded_skeleton(small, traced, inner):
            return "its units differ in a tensor that training does not send"
        kept = traced.flat_index(inner)
        place = torch.from_numpy(
            kept.copy() if _is_full(traced, outer) else np.searchsorted(traced.flat_index(outer), kept)
        )
        for part in (base, small):
            part.to(torch.float64 if self._double else torch.float32)
        values = _random_values(base)
        chosen = values[place]
        _set(small, chosen)
        try:
            got = [x for training in modes for x in self._run(small, training)]
            if traced.sizes and True in modes:
                self._train(small)
        except Exception as error:  # whatever its code raises
            return f"the code of the module fixes its width ({first_line(error, 80)})"
        _set(base, values.zero_().index_put_((place,), chosen))
        expected = [x for training in modes for x in self._run(base, training)]
        if any(x.isnan().any() for x in expected):
            return "what it gives with random parameters is not a number"
        if len(got) != len(expected) or not all(self._close(a, b) for a, b in zip(got, expected, strict=True)):
            return "its cut gives another output than the full module with absent units silenced"
        ran = self._ran if self._large else ()
        if ran and any(self._names(base, training) != ran[training] for training in modes):
            return "its forward does something else for other widths"
        return None

    def _base(self, traced: Traced, groups: Collection[int]) -> IndexSet:
        """What a cut of these groups is compared with."""
        if not self._large:
            return traced.full()
        rng = np.random.default_rng(1)
        return tuple(
            np.sort(rng.permutation(group.size)[: min(group.size, NARROW)]) if g in groups else np.arange(group.size)
            for g, group in enumerate(traced.groups)
        )

    def _whole(self, traced: Traced, outer: IndexSet) -> nn.Module:
        return copy.deepcopy(traced.module) if _is_full(traced, outer) and not self._large else traced.cut(outer)

    def _names(self, module: nn.Module, training: bool) -> list[str]:
        noted = Noted(module)
        self._run(module, training, noted)
        return noted.names

    def _close(self, found: Tensor, expected: Tensor) -> bool:
        """Equal but for rounding, in relation to the largest number that is no mask."""
        if found.shape != expected.shape:
            return False
        apart = torch.where(found == expected, 0.0, (found - expected).abs())
        return bool((apart <= self._tolerance * _scales(expected)).all())

    def _train(self, module: nn.Module) -> None:
        """Once forward and back: code that runs again for its gradient, under checkpoints, states widths there, too."""
        found = [x for x in self._run(module, True, gradients=True) if x.requires_grad]
        if found:
            torch.autograd.grad([x.sum() for x in found], trainable(module), allow_unused=True)

    def _run(
        self, module: nn.Module, training: bool, noted: Noted | None = None, *, gradients: bool = False
    ) -> list[Tensor]:
        with torch.set_grad_enabled(gradients), torch.random.fork_rng(), ExitStack() as stack:
            stack.enter_context(WithoutDropout())
            stack.enter_context(Silenced())
            if self._double:
                stack.enter_context(in_double())
            torch.manual_seed(0)  # stochastic depth draws the same for both
            inputs = mapped(lambda part: part.clone(), self._input)
            with noted or nullcontext():
                result = forward(module.train(training), inputs)
            return [x if x.is_floating_point() or x.is_complex() else x.double() for x in tensors(result)]


def _is_full(traced: Traced, kept: IndexSet) -> bool:
    return traced.widths(kept) == tuple(group.size for group in traced.groups)


def _scales(expected: Tensor) -> Tensor:
    """In relation to what each number is compared: at least to the largest that is not a mask's, such as -1e9."""
    sizes = torch.where(expected.isfinite(), expected.abs(), 0.0)
    if not sizes.numel():
        return sizes
    places = sizes.amax(0, keepdim=True) if sizes.dim() else sizes
    found = places[places > ROUNDING * torch.finfo(sizes.dtype).eps * places.max()]
    return places.clamp(min=found[found <= MASKED * found.min()].max()) if len(found) else places


def _noisy(example: Tensor, rows: int, double: bool) -> Tensor:
    """An input of so many rows, all different where they are floats."""
    part = example[:2].repeat(rows // 2, *(1,) * (example.dim() - 1))
    if part.is_floating_point():
        noise = torch.randn(part.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        part = part.double() + noise
    return part if double else part.to(example.dtype)


class Noted(TorchFunctionMode):
    """Notes the names of the functions by which a module makes or changes tensors.

    What only asks for a size is not noted, for PyTorch itself asks where tensors have values. Attention counts as one
    function, for a cut has its own.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.names: list[str] = []
        self._inside = 0
        self._attention = [layer for layer in module.modules() if isinstance(layer, nn.MultiheadAttention)]

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self._inside and (out is None or any(True for _ in tensors(out))):
            self.names.append(name_of(func))
        return out

    def __enter__(self) -> Self:
        self._hooks = [layer.register_forward_pre_hook(self._enter) for layer in self._attention]
        self._hooks += [layer.register_forward_hook(self._leave) for layer in self._attention]
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves both untyped
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # likewise
        for hook in self._hooks:
            hook.remove()

    def _enter(self, *_: object) -> None:
        self.names.append("attention")
        self._inside += 1

    def _leave(self, *_: object) -> None:
        self._inside -= 1


class WithoutDropout(TorchFunctionMode):
    """Dropout does nothing: it would draw differently for tensors of different widths."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if "dropout" in name:
            return args[0] if args else kwargs["input"]
        place = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}.get(name)
        if name in ("gru", "lstm", "rnn_relu", "rnn_tanh"):
            place = 5 + (not isinstance(args[3], bool))  # packed sequences have their lengths besides
        if place is not None and len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif place == 4:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


class Silenced(TorchFunctionMode):
    """What keeps silent units out of a comparison: their normalised weights are zero, and noise is alike for all."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("rand_like", "randn_like"):
            return torch.full_like(args[0] if args else (kwargs or {})["input"], 0.5)
        if name != "_weight_norm":
            return func(*args, **(kwargs or {}))
        direction, length, dim = (*args, 0)[:3]
        norm = torch.norm_except_dim(direction, 2, dim)
        return direction * (length / (norm + (norm == 0)))


class Double(TorchFunctionMode):
    """Code that asks for a lower precision gets float64, so that rounding never hides a difference."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("float", "half", "bfloat16"):
            func = torch.Tensor.double
        elif getattr(func, "__name__", "") == GROUPED:  # which takes no float64
            func = grouped_product
        args = tuple(_raised(x) for x in args)
        return func(*args, **{name: _raised(x) for name, x in (kwargs or {}).items()})


def _raised(value: Any) -> Any:
    return _RAISED.get(value, value) if isinstance(value, torch.dtype) else value


@contextmanager
def in_double() -> Iterator[None]:
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


def _random_values(module: nn.Module) -> Tensor:
    """Its flat vector with something added, so that nothing stays zero or one; signals stay of order one."""
    random, parts = torch.Generator().manual_seed(0), []
    for p in trainable(module):
        scale = 0.1 if p.dim() < 2 else 0.5 / (p.numel() / max(1, len(p))) ** 0.5
        noise = torch.rand(p.shape, generator=random).sub_(0.5).mul_(12**0.5 * scale)
        parts.append((p.detach() + noise.to(p.dtype)).reshape(-1))
    return torch.cat(parts) if parts else torch.zeros(0)


def _set(module: nn.Module, values: Tensor) -> None:
    """Give the trainable parameters these values [k]."""
    start = 0
    with torch.no_grad():
        for p in trainable(module):
            p.copy_(values[start : start + p.numel()].view(p.shape))
            start += p.numel()


def _some(size: int, rng: np.random.Generator) -> int:
    return min(size - 1, max(1, round(size * rng.uniform(0.35, 0.75))))
