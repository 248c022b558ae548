"""The test of the width groups: a submodel must compute the same as the full module without the removed units.

The test sets the parameters of these units to 0 in the full module, and compares both outputs.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.data.tree import Tree, map_tree
from fedraa.errors import InputError
from fedraa.models.forward import forward
from fedraa.submodels.flat import trainable_parameters
from fedraa.submodels.traced import IndexSet, Traced
from fedraa.submodels.tracing.accept import short_line
from fedraa.submodels.tracing.modes import FunctionNames, SilentUnits, WithoutDropout, in_double
from fedraa.submodels.tracing.nonempty_mode import NonemptyMode
from fedraa.submodels.tracing.recorder import iterate_tensors

# The tolerance ignores values of a mask, such as -1e9. An output counts as such a value if its absolute value is more
# than this multiple of the smallest absolute value.
MASK_RATIO = 1e5
# An output below this multiple of the rounding error of the largest output may be a rounded zero.
ROUNDING_RATIO = 1e3
# A test of a large module keeps at most this number of units per group.
NARROW_WIDTH = 3


class CutChecker:
    """A test of the width groups of one module.

    The test compares a submodel with the full module. Both have random parameters, in float64 if possible. If the
    module is `large`, the test compares two narrow submodels with each other. It also checks that submodels and the
    full module run the same functions.
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
        """Prepare the tests of a traced module.

        Args:
            traced: The traced module.
            example: A batch of at least two inputs.
            ran: Names of the functions that ran in the full module, in evaluation and in training mode. Empty if they
                are unknown.
            large: True to compare only narrow submodels with each other.
            fills: In a mixture of experts, True runs an expert on row 0 if the input gives it no row.
            zeros: True if the code creates tensors of zeros with the width of a group.
            tries: Number of tests, each with other units and parameters.
        """
        self._tries = tries
        self._zeros = zeros
        self._large = large
        self._ran = ran
        self._fills = fills
        try:
            self._prepare_input(traced, example)
        except InputError:
            if not large:
                raise
            self._large = False
            self._prepare_input(traced, example)

    def _prepare_input(self, traced: Traced, example: Tree) -> None:
        """Find an input and a precision with which the full module runs.

        The first candidate has float64 numbers, noise and additional rows. Later candidates lack some of these, because
        some modules need float32, images without noise, or a fixed number of rows.
        """
        base = self._cut_base(traced, self._choose_base(traced, range(len(traced.groups))))
        ways = [(2, double, noise) for double, noise in product((True, False), repeat=2)]
        if traced.sizes:
            ways.insert(0, (4, True, True))
        if self._tries > 1:
            ways.insert(0, (8, True, True))
        known: tuple[bool, bool, Tree] | None = None
        for fills, (rows, double, noise) in product(dict.fromkeys((self._fills, False)), ways):
            self._fills = fills
            self._double = double
            self._input = map_tree(partial(_repeat_rows, rows=rows, double=double, noise=noise), example)
            try:
                outputs = self._run_module(_set_precision(base, double), training=False)
            # The module's code may raise any exception.
            except Exception as error:
                failure = error
                continue
            known = known or (fills, double, self._input)
            if not any(x.isnan().any() for x in outputs):
                known = fills, double, self._input
                break
        if known is None:
            kind = type(traced.module).__name__
            problem = f"{kind} runs on it once, but not a second time ({short_line(failure, 100)})"
            raise InputError("example", problem) from failure
        self._fills, self._double, self._input = known
        # Batch norms of two samples amplify rounding errors.
        self._tolerance = 1e-6 if self._double else 1e-3

    def find_failure(self, traced: Traced, groups: Sequence[int]) -> str | None:
        """Return the problem that a cut of these groups causes, or None if it passes. The numbers are ascending."""
        if not groups:
            return None
        # The test fills the caches of this copy. The caches of the original must stay empty.
        traced = dataclasses.replace(traced)
        for number in range(self._tries):
            failure = self._find_failure_once(traced, groups, number)
            if failure is not None:
                return failure
        return None

    def _find_failure_once(self, traced: Traced, groups: Sequence[int], number: int) -> str | None:
        """Test three submodels. Return the problem of the first wrong one, or None if all of them are right.

        The first keeps about half of the units of each group. The second keeps one unit of each group, because code may
        squeeze dimensions of size 1. The third is tested only if the code creates tensors of zeros.
        In the third, only every second group is cut. This shows if a tensor of zeros has the width of a wrong group.

        Args:
            traced: The traced module.
            groups: Numbers of the groups to cut.
            number: Number of the try, from 0. A try with an odd number keeps the units that the try before it cut.
        """
        rng = np.random.default_rng(number // 2)
        outer = self._choose_base(traced, groups)
        half = list(outer)
        mixed = list(outer)
        for g in groups:
            order = rng.permutation(outer[g])
            count = _draw_count(len(order), rng)
            halves = order[:count], order[count:]
            half[g] = np.sort(halves[number % 2])
        one = list(half)
        for g in groups:
            one[g] = rng.permutation(half[g])[:1]
        first = (number + 1) % 2
        mixed[first::2] = half[first::2]
        failure = self._find_difference(traced, outer, tuple(half), number)
        if failure is None:
            failure = self._find_difference(traced, tuple(half), tuple(one), number, modes=(False,))
        if failure is None and self._zeros and len(groups) > 1:
            failure = self._find_difference(traced, outer, tuple(mixed), number, modes=(False,))
        return failure

    def _find_difference(
        self, traced: Traced, outer: IndexSet, inner: IndexSet, number: int, modes: Sequence[bool] = (False, True)
    ) -> str | None:
        """Return a description of the difference between two submodels, or None if their outputs are equal.

        The larger submodel has all units of the smaller one, and further units. The parameters of the further units
        are 0.

        Args:
            traced: The traced module.
            outer: The units of the larger submodel.
            inner: The units of the smaller submodel.
            number: Seed of the random parameters.
            modes: False to test evaluation mode, True to test training mode.
        """
        small = traced.cut(inner)
        base = self._cut_base(traced, outer)
        if not _is_loaded_skeleton(small, traced, inner):
            return "its units differ in a tensor that training does not send"
        kept = traced.flat_index(inner).copy()
        if not _is_full(traced, outer):
            kept = np.searchsorted(traced.flat_index(outer), kept)
        place = torch.from_numpy(kept)
        for part in (base, small):
            _set_precision(part, self._double)
        values = _random_values(base, number)
        chosen = values[place]
        _set_parameters(small, chosen)
        results: list[Tensor] = []
        failure = ""
        try:
            results = self._run_modes(small, modes, back=bool(traced.sizes))
        # The module's code may raise any exception.
        except Exception as error:
            failure = f"the code of the module fixes its width ({short_line(error, 80)})"
        _set_parameters(base, values.zero_().index_put_((place,), chosen))
        try:
            expected = self._run_modes(base, modes)
        # The module's code may raise any exception. For example, a module that counts the rows of its experts may fail
        # because `NonemptyMode` gives row 0 to an idle expert. The test is then repeated without this mode.
        except Exception as error:
            if self._fills:
                self._fills = False
                return self._find_difference(traced, outer, inner, number, modes)
            return f"the full module does not run with random parameters ({short_line(error, 80)})"
        if failure:
            return failure
        if any(x.isnan().any() for x in expected):
            return "its output with random parameters is not a number"
        if len(results) != len(expected) or not all(map(self._is_close, results, expected)):
            return "its cut gives another output than the full module with zero parameters for the absent units"
        if self._large and self._ran and any(self._record_names(base, mode) != self._ran[mode] for mode in modes):
            return "its forward runs other functions for other widths"
        return None

    def _choose_base(self, traced: Traced, groups: Sequence[int]) -> IndexSet:
        """Return the units of the larger submodel for a test of these groups.

        In a small module, this submodel has all units. In a large module, it has at most `NARROW_WIDTH` units of each
        of these groups, and all units of the other groups.
        """
        if not self._large:
            return traced.full()
        rng = np.random.default_rng(1)
        units = list(traced.full())
        for g in groups:
            units[g] = np.sort(rng.permutation(len(units[g]))[:NARROW_WIDTH])
        return tuple(units)

    def _cut_base(self, traced: Traced, outer: IndexSet) -> nn.Module:
        if _is_full(traced, outer) and not self._large:
            return copy.deepcopy(traced.module)
        return traced.cut(outer)

    def _record_names(self, module: nn.Module, training: bool) -> list[str]:
        noted = FunctionNames(module)
        self._run_module(module, training, noted)
        return noted.names

    def _is_close(self, result: Tensor, expected: Tensor) -> bool:
        """Return True if the tensors are equal up to rounding."""
        if result.shape != expected.shape:
            return False
        apart = torch.where(result == expected, 0.0, (result - expected).abs())
        return bool((apart <= self._tolerance * _find_scales(expected)).all())

    def _run_modes(self, module: nn.Module, modes: Sequence[bool], *, back: bool = False) -> list[Tensor]:
        """Return the outputs in each mode (True: training). With `back`, training mode also runs the backward pass."""
        results = []
        for training in modes:
            results += self._run_module(module, training, back=back and training)
        return results

    def _run_module(
        self, module: nn.Module, training: bool, noted: FunctionNames | None = None, *, back: bool = False
    ) -> list[Tensor]:
        """Return the outputs of the module's forward pass.

        Args:
            module: The module to run.
            training: True for training mode.
            noted: A mode that records the names of the functions, or None.
            back: True to also run the backward pass, in which activation checkpoints run code again.
        """
        with torch.set_grad_enabled(back), torch.random.fork_rng(), ExitStack() as stack:
            stack.enter_context(WithoutDropout())
            stack.enter_context(SilentUnits())
            stack.enter_context(NonemptyMode(self._fills))
            if self._double:
                stack.enter_context(in_double())
            # The seed makes stochastic depth drop the same layers in all runs.
            torch.manual_seed(0)
            inputs = map_tree(lambda part: part.clone(), self._input)
            with noted or nullcontext():
                result = forward(module.train(training), inputs)
            outputs = list(map(_as_floats, iterate_tensors(result)))
            sums = [x.sum() for x in outputs if x.requires_grad]
            if back and sums:
                torch.autograd.grad(sums, trainable_parameters(module), allow_unused=True)
            return [x.detach() for x in outputs]


def _is_full(traced: Traced, kept: IndexSet) -> bool:
    return traced.widths(kept) == tuple(group.size for group in traced.groups)


def _set_precision(module: nn.Module, double: bool) -> nn.Module:
    """Convert the module to double or single precision, and return it. Unlike `Module.to`, keep complex numbers."""

    def convert(x: Tensor) -> Tensor:
        if x.is_complex():
            return x.to(torch.complex128 if double else torch.complex64)
        if x.is_floating_point():
            return x.to(torch.float64 if double else torch.float32)
        return x

    converted: nn.Module = module._apply(convert)
    return converted


def _as_floats(x: Tensor) -> Tensor:
    if x.is_floating_point() or x.is_complex():
        return x
    return x.double()


def _find_scales(expected: Tensor) -> Tensor:
    """Return, for each position of an output, the size to which the tolerance is relative.

    For most positions, the size is the largest absolute value in the output, without values of a mask (such as -1e9).
    For a position with values of a mask, the size is the largest absolute value at this position over all samples.
    """
    sizes = torch.where(expected.isfinite(), expected.abs(), 0.0)
    if not sizes.numel():
        return sizes
    places = sizes.reshape(sizes.shape or (1,)).amax(0, keepdim=True)
    exact = places[places > ROUNDING_RATIO * torch.finfo(sizes.dtype).eps * places.max()]
    if not len(exact):
        return places
    return places.clamp(min=exact[exact <= MASK_RATIO * exact.min()].max())


def _repeat_rows(example: Tensor, rows: int, double: bool, noise: bool) -> Tensor:
    """Return an input that repeats the first two rows of the example.

    Args:
        example: The example.
        rows: Number of rows of the result.
        double: True to convert floats to float64.
        noise: True to add noise to floats, so that all rows differ.
    """
    part = example[:2].repeat(rows // 2, *(1,) * (example.dim() - 1))
    if part.is_floating_point():
        part = part.double()
        if noise:
            # Rows from 4 on have the opposite sign. The test then includes negative numbers.
            part[4:] *= -1
            part = part + torch.randn(part.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if double:
        return part
    return part.to(example.dtype)


def _is_loaded_skeleton(small: nn.Module, full: Traced, indices: IndexSet) -> bool:
    """Return True if a worker can rebuild this submodel from only its widths and its flat vector.

    A buffer with different values for different units makes that impossible.
    """
    skeleton = full.make_skeleton(full.widths(indices))
    rebuilt, expected = _tensors_by_name(skeleton), _tensors_by_name(small)
    held = full.units.keys() - set(full.names) - full.estimated
    if not all(torch.equal(rebuilt[name], expected[name]) for name in held):
        return False
    flat = full.flat_index(indices)
    for whole, part, offset in zip(
        trainable_parameters(full.module), trainable_parameters(small), full.offsets, strict=True
    ):
        first, last = np.searchsorted(flat, (offset, offset + whole.numel()))
        if not torch.equal(whole.reshape(-1)[torch.from_numpy(flat[first:last] - offset)], part.reshape(-1)):
            return False
    return True


def _tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    return dict((*module.named_parameters(), *module.named_buffers()))


def _random_values(module: nn.Module, seed: int) -> Tensor:
    """Return the module's flat vector plus small noise. The noise avoids values of exactly 0 or 1."""
    random = torch.Generator().manual_seed(seed)
    parts = [torch.zeros(0)]
    for p in trainable_parameters(module):
        scale = 0.1 if p.dim() < 2 else 0.5 / max(1, p.numel() / max(1, len(p))) ** 0.5
        noise = torch.rand(p.shape, generator=random).sub_(0.5).mul_(12**0.5 * scale)
        parts.append((p.detach() + noise.to(p.dtype)).reshape(-1))
    return torch.cat(parts)


def _set_parameters(module: nn.Module, values: Tensor) -> None:
    start = 0
    with torch.no_grad():
        for p in trainable_parameters(module):
            p.copy_(values[start : start + p.numel()].view(p.shape))
            start += p.numel()


def _draw_count(size: int, rng: np.random.Generator) -> int:
    """Return a random number of units to keep: about half of `size`, at least 1 and less than `size`."""
    return min(size - 1, max(1, round(size * rng.uniform(0.35, 0.75))))
