"""Try a cut: does it give what the full module gives when its absent units are silent?"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedraa.submodels.flat import trainable
from fedraa.submodels.traced import Traced
from fedraa.submodels.tracing.recorder import tensors


class Trial:
    """One module, in float64 if it can be, with random parameters, so that none is zero and every difference shows."""

    def __init__(self, traced: Traced, example: Tensor) -> None:
        self._template = traced.module
        self._module = copy.deepcopy(traced.module).double()
        self._input = example[:2]
        if self._input.is_floating_point():
            noise = torch.randn(self._input.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            self._input = self._input.double() + noise
        self._tolerance = 1e-6  # relative: deep batch norms of two samples amplify rounding
        try:
            self._run(self._module, training=False)
        except RuntimeError:  # its code asks for float32
            self._tolerance = 1e-3
            self._module.float()
            self._input = self._input.to(example.dtype)

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
        try:
            got = [x for training in modes for x in self._run(small, training)]
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            return f"the code of the module fixes its width ({str(error).splitlines()[0]})"
        _silence(full, full.flat_index(indices))
        expected = [x for training in modes for x in self._run(self._module, training)]
        for a, b in zip(got, expected, strict=True):
            if a.shape != b.shape or not (a - b).abs().max() <= self._tolerance * (1 + b.abs().max()):
                return "its cut gives another output than the full module with absent units silenced"
        return None

    def _randomise(self) -> None:
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p, original in zip(self._module.parameters(), self._template.parameters(), strict=True):
                scale = 0.1 if p.dim() < 2 else 0.5 / (p.numel() / len(p)) ** 0.5
                p.copy_(original).add_(scale * torch.randn(p.shape, generator=random, dtype=p.dtype))

    def _run(self, module: nn.Module, training: bool) -> list[Tensor]:
        with torch.no_grad(), torch.random.fork_rng(), WithoutDropout():
            torch.manual_seed(0)  # stochastic depth draws the same for both
            return [x for x in tensors(module.train(training)(self._input.clone())) if x.is_floating_point()]


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


def _silence(traced: Traced, kept: np.ndarray) -> None:
    """Set every trainable parameter of the module outside `kept` (a flat index) to zero."""
    mask = torch.zeros(traced.size, dtype=torch.bool)
    mask[torch.from_numpy(kept.copy())] = True
    with torch.no_grad():
        for p, offset in zip(trainable(traced.module), traced.offsets, strict=True):
            p.mul_(mask[offset : offset + p.numel()].view(p.shape))


def _some(size: int, rng: np.random.Generator) -> int:
    return min(size - 1, max(1, round(size * rng.uniform(0.35, 0.75))))
