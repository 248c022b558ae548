"""Torch modes that record or change the function calls of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedraa.submodels.resize import GROUPED, grouped_product, name_of
from fedraa.submodels.tracing.recorder import iterate_tensors

_RAISED = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64) | dict.fromkeys(
    (torch.complex32, torch.complex64), torch.complex128
)


class FunctionNames(TorchFunctionMode):
    """A mode that records the names of the functions that create or change tensors.

    Functions that only return a size are not recorded, because PyTorch itself calls them. An attention layer counts as
    one function, because the functions that it calls depend on its width.
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
        if not self._inside and (out is None or any(True for _ in iterate_tensors(out))):
            self.names.append(name_of(func))
        return out

    def __enter__(self) -> Self:
        self._hooks = [layer.register_forward_pre_hook(self._enter_attention) for layer in self._attention]
        self._hooks += [layer.register_forward_hook(self._leave_attention) for layer in self._attention]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _enter_attention(self, *_: object) -> None:
        self.names.append("attention")
        self._inside += 1

    def _leave_attention(self, *_: object) -> None:
        self._inside -= 1


class WithoutDropout(TorchFunctionMode):
    """A mode that turns dropout off, because dropout draws different numbers for tensors of different widths."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if "dropout" in name:
            return (*args, kwargs.get("input"))[0]
        place = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}.get(name)
        if name in ("gru", "lstm", "rnn_relu", "rnn_tanh"):
            # Argument 5 is the dropout probability. With a packed sequence, it is argument 6.
            place = 5 + (not isinstance(args[3], bool))
        if place is not None and len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif place == 4:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


class SilentUnits(TorchFunctionMode):
    """A mode in which units output 0 if all of their parameters are 0.

    Random noise becomes the constant 0.5. A weight norm of zeros becomes 0 instead of NaN.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("rand_like", "randn_like"):
            return torch.full_like((*args, (kwargs or {}).get("input"))[0], 0.5)
        if name != "_weight_norm":
            return func(*args, **(kwargs or {}))
        direction, length, dim = (*args, 0)[:3]
        norm = torch.norm_except_dim(direction, 2, dim)
        return direction * (length / (norm + (norm == 0)))


class DoublePrecision(TorchFunctionMode):
    """A mode that replaces lower precisions by float64, so that rounding does not hide a difference of two models."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ("float", "half", "bfloat16"):
            func = torch.Tensor.double
        elif getattr(func, "__name__", "") == GROUPED:
            # torch._grouped_mm does not accept float64.
            func = grouped_product
        args = tuple(_raise_precision(x) for x in args)
        return func(*args, **{name: _raise_precision(x) for name, x in (kwargs or {}).items()})


def _raise_precision(value: Any) -> Any:
    """Return float64 or complex128 for a type of lower precision, and any other value unchanged."""
    if isinstance(value, torch.dtype):
        return _RAISED.get(value, value)
    return value


@contextmanager
def in_double() -> Iterator[None]:
    """Make float64 the default dtype inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with DoublePrecision():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Turn off the fast path of attention inside the block. It skips functions that a mode must record or count."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
