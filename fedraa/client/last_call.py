"""A record of the last call of a module, such as the features that a layer receives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class LastCall:
    """The arguments and the result of a module's last forward pass."""

    def __init__(self) -> None:
        self.args: tuple[Any, ...] = ()
        self.result: Any = None

    def record(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        """Store the arguments and the result. torch calls this function as a hook of the module."""
        self.args = args
        self.result = result


@contextmanager
def recorded_call(module: nn.Module) -> Iterator[LastCall]:
    """Yield an object with the module's last forward pass in the block."""
    call = LastCall()
    handle = module.register_forward_hook(call.record)
    try:
        yield call
    finally:
        handle.remove()
