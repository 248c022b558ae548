"""Description of the state that a model changes by itself, besides the parameters that are trained."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class TrainingState:
    """The handling of state that a model changes by itself."""

    estimated: tuple[str, ...] = ()
    """Buffers, besides those of batch norms, that are estimated before each evaluation."""
    read: tuple[str, ...] = ()
    """The subset of `estimated` that evaluation reads."""
    changes: tuple[str, ...] = ()
    """All state that training changes besides parameters and batch norms' statistics.

    If there is any, each task gets a new module.
    """
    restored: bool = False
    """True if evaluation changes buffers. These are then restored after every batch."""
    min_batch: int = 1
    """The smallest batch that the model can be trained on, 1 or 2."""
    min_eval_batch: int = 1
    """The smallest batch that the model can be evaluated on, 1 or 2."""
    warnings: tuple[str, ...] = ()


def is_quantiser(part: nn.Module) -> bool:
    """Return True for the observers and the fake quantisation of `torch.ao`, without importing it."""
    return any(
        kind.__module__.startswith("torch.ao.quantization") and kind.__name__ in ("ObserverBase", "FakeQuantizeBase")
        for kind in type(part).__mro__
    )


def freeze_ranges(module: nn.Module) -> None:
    """Fix the ranges of fake quantisation, which would otherwise also change with test data in evaluation mode."""
    for part in module.modules():
        if is_quantiser(part) and hasattr(part, "disable_observer"):
            # The types of torch declare the attributes of a module as tensors.
            part.disable_observer()  # type: ignore[operator]
