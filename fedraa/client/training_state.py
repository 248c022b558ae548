"""The state that a model changes in training or evaluation, besides its trained parameters."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class TrainingState:
    """The state that a model changes besides its trained parameters and the statistics of batch norms.

    Attributes:
        estimated: Names of the buffers that are estimated before each evaluation.
        read: Names of those buffers in `estimated` that evaluation reads.
        changes: Names of all buffers and attributes that training changes. If there are any, each task gets a new
            module.
        restored: True if evaluation changes buffers. They are restored after every batch.
        min_batch: The smallest batch on which the model can be trained, 1 or 2.
        min_eval_batch: The smallest batch on which the model can be evaluated, 1 or 2.
        warnings: Sentences about the model for the user.
    """

    estimated: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    restored: bool = False
    min_batch: int = 1
    min_eval_batch: int = 1
    warnings: tuple[str, ...] = ()


def is_quantiser(part: nn.Module) -> bool:
    """Return True for an observer or a fake quantisation module of `torch.ao`, without importing `torch.ao`."""
    return any(
        kind.__module__.startswith("torch.ao.quantization") and kind.__name__ in ("ObserverBase", "FakeQuantizeBase")
        for kind in type(part).__mro__
    )


def freeze_ranges(module: nn.Module) -> None:
    """Freeze the ranges of fake quantisation modules, so that evaluation data do not change the ranges."""
    for part in module.modules():
        if is_quantiser(part) and hasattr(part, "disable_observer"):
            # torch's type hints declare all attributes of a module as tensors.
            part.disable_observer()  # type: ignore[operator]
