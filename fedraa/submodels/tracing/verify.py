"""Try a cut: does it give what the full module gives when its absent units are silent?"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.data.tree import Tree, mapped
from fedraa.errors import InputError
from fedraa.models.forward import forward
from fedraa.submodels.flat import trainable
from fedraa.submodels.traced import IndexSet, Traced
from fedraa.submodels.tracing.accept import first_line
from fedraa.submodels.tracing.found import Found
from fedraa.submodels.tracing.modes import Noted, Silenced, WithoutDropout, in_double
from fedraa.submodels.tracing.recorder import tensors

MASKED = 1e5  # times the smallest number of an output: what is larger says nothing about the others
ROUNDING = 1e3  # times the precision of the largest number: what is smaller may be 0 but for rounding
NARROW = 3  # units of each group of a large module that is tried


class Trial:
    """One module, in float64 if it can be, with random parameters, so that none is zero and every difference shows.

    Of a `large` module not the whole is compared with a cut, but a narrow cut with a narrower one; that the narrow one
    does what the whole does shows in the functions that ran, `ran` in evaluation and training mode, if known.
    """

    def __init__(
        self,
        traced: Traced,
        example: Tree,
        ran: Sequence[Sequence[str]] = (),
        *,
        large: bool = False,
        fills: bool = True,
        zeros: bool = False,
        tries: int = 1,
    ) -> None:
        """Each cut is tried so many times, with other units and parameters, and more rows if it is more than once.

        `zeros` says whether its code makes zeros, which are as wide as what is written into them later.
        """
        self._tries, self._zeros = tries, zeros
        self._large, self._ran, self._fills = large, ran, fills
        try:
            self._prepare(traced, example)
        except InputError:
            if not large:
                raise
            self._large = False
            self._prepare(traced, example)

    def _prepare(self, traced: Traced, example: Tree) -> None:
        """Find an input, and a precision, with which the whole runs.

        Numbers in its code may count samples, which shows with more of them; it may not do without float32, or take
        inputs with noise, such as pictures that it checks; and it may count what it finds.
        """
        base = self._whole(traced, self._base(traced, range(len(traced.groups))))
        ways = [(8, True, True)] * (self._tries > 1) + [(4, True, True)] * bool(traced.sizes)
        ways += [(2, double, noise) for double in (True, False) for noise in (True, False)]
        known: tuple[bool, bool, Tree] | None = None
        for fills, (rows, double, noise) in product(dict.fromkeys((self._fills, False)), ways):
            self._fills, self._double = fills, double
            self._input = mapped(partial(_repeated, rows=rows, double=double, noise=noise), example)
            try:
                found = self._run(base.to(torch.float64 if double else torch.float32), training=False)
            except Exception as error:  # whatever its code raises
                failure = error
                continue
            known = known or (fills, double, self._input)
            if not any(x.isnan().any() for x in found):
                known = fills, double, self._input
                break
        if known is None:
            problem = f"{type(traced.module).__name__} runs on it once and not again ({first_line(failure, 100)})"
            raise InputError("example", problem) from failure
        self._fills, self._double, self._input = known
        self._tolerance = 1e-6 if self._double else 1e-3  # relative: batch norms of two samples amplify rounding

    def fails(self, traced: Traced, groups: Collection[int]) -> str | None:
        """Cut these groups to about half, all others left whole, then to one unit each. Returns what went wrong.

        One unit is what code treats in another way that squeezes its tensors, or asks how wide they are; it is tried in
        evaluation mode alone. So is every second group cut on its own, where code makes zeros: they may be given the
        width of another group.
        """
        traced = dataclasses.replace(traced)  # less what it remembers
        for number in range(self._tries):
            if (failure := self._fails_once(traced, groups, number)) is not None:
                return failure
        return None

    def _fails_once(self, traced: Traced, groups: Collection[int], number: int) -> str | None:
        """Every second try takes the half that the one before left out."""
        rng, outer = np.random.default_rng(number // 2), self._base(traced, groups)

        def some(kept: np.ndarray) -> np.ndarray:
            order, count = rng.permutation(kept), _some(len(kept), rng)
            return np.sort(order[count:] if number % 2 else order[:count])

        half = tuple(some(kept) if g in groups else kept for g, kept in enumerate(outer))
        one = tuple(rng.permutation(kept)[:1] if g in groups else kept for g, kept in enumerate(half))
        mixed = tuple(half[g] if (g + number) % 2 else kept for g, kept in enumerate(outer))
        failure = self._differ(traced, outer, half, number) or self._differ(traced, half, one, number, modes=(False,))
        if failure or not self._zeros or len(groups) < 2:
            return failure
        return self._differ(traced, outer, mixed, number, modes=(False,))

    def _differ(
        self, traced: Traced, outer: IndexSet, inner: IndexSet, number: int, modes: Sequence[bool] = (False, True)
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
        values = _random_values(base, number)
        chosen = values[place]
        _set(small, chosen)
        got, failure = list[Tensor](), ""
        try:
            got = [x for training in modes for x in self._run(small, training, back=training and bool(traced.sizes))]
        except Exception as error:  # whatever its code raises
            failure = f"the code of the module fixes its width ({first_line(error, 80)})"
        _set(base, values.zero_().index_put_((place,), chosen))
        try:
            expected = [x for training in modes for x in self._run(base, training)]
        except Exception as error:
            if self._fills:  # its code may count what it finds
                self._fills = False
                return self._differ(traced, outer, inner, number, modes)
            return f"the whole does not run with random parameters ({first_line(error, 80)})"
        if failure:
            return failure
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

    def _run(
        self, module: nn.Module, training: bool, noted: Noted | None = None, *, back: bool = False
    ) -> list[Tensor]:
        """Once forward, or `back` as well: code that runs again under checkpoints states its widths there, too."""
        with torch.set_grad_enabled(back), torch.random.fork_rng(), ExitStack() as stack:
            stack.enter_context(WithoutDropout())
            stack.enter_context(Silenced())
            stack.enter_context(Found(self._fills))
            if self._double:
                stack.enter_context(in_double())
            torch.manual_seed(0)  # stochastic depth draws the same for both
            inputs = mapped(lambda part: part.clone(), self._input)
            with noted or nullcontext():
                result = forward(module.train(training), inputs)
            found = [x if x.is_floating_point() or x.is_complex() else x.double() for x in tensors(result)]
            if back and (learnt := [x.sum() for x in found if x.requires_grad]):
                torch.autograd.grad(learnt, trainable(module), allow_unused=True)
            return [x.detach() for x in found]


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


def _repeated(example: Tensor, rows: int, double: bool, noise: bool) -> Tensor:
    """An input of so many rows, which with `noise` are all different where they are floats."""
    part = example[:2].repeat(rows // 2, *(1,) * (example.dim() - 1))
    if part.is_floating_point():
        part = part.double()
        if noise:
            part[4:] *= -1  # more rows are for more kinds of numbers
            part = part + torch.randn(part.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return part if double else part.to(example.dtype)


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


def _random_values(module: nn.Module, seed: int) -> Tensor:
    """Its flat vector with something added, so that nothing stays zero or one; signals stay of order one."""
    random, parts = torch.Generator().manual_seed(seed), []
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
