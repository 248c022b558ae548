"""Validation of updates: what is wrong with one is found before any of it reaches the model."""

import numpy as np
import numpy.typing as npt

from fedraa.messages import Receipt, Task, Update


def refuse(update: Update, task: Task | None, *, max_norm: float | None = None) -> str | None:
    """Why this update must not be taken as the answer to the task that is out; None if it may.

    `task` is the one that the update is to answer, None if no such task is out. `max_norm` bounds the Euclidean
    norm of what the client changed, ||w - w_received||.
    """
    if task is None:
        return f"task {update.task} is not out"
    for name, value, asked in (
        ("task", update.task, task.id),
        ("client", update.client, task.client),
        ("fragment", update.fragment, task.fragment),
        ("version", update.version, task.version),
    ):
        if value != asked:
            return f"{name} is {value} where {asked} was asked"
    receipt = update.receipt
    if wrong := _wrong_buffer(update.params, (task.size,)) if receipt is None else _wrong_receipt(receipt):
        return f"params {wrong}"
    for name, buffer in update.extras.items():
        if wrong := _wrong_buffer(buffer, None):
            return f"{name} {wrong}"
    if not np.isfinite(update.loss):
        return f"the training loss is {update.loss}"
    if max_norm is not None:
        if receipt is None:
            norm = float(np.linalg.norm(update.params.astype(np.float64) - task.params))
        else:
            norm = float(np.sqrt(receipt.squared))
        if norm > max_norm:
            return f"the update's norm {norm:.4g} is over the bound {max_norm:g}"
    return None


def _wrong_buffer(buffer: object, shape: tuple[int, ...] | None) -> str | None:
    wrong = wrong_kind(buffer, shape)
    if wrong is not None:
        return wrong
    assert isinstance(buffer, np.ndarray)
    return _told(not_finite(buffer))


def _wrong_receipt(receipt: Receipt) -> str | None:
    return receipt.wrong or _told(receipt.bad)


def _told(bad: int) -> str | None:
    return f"hold {bad} values that are not finite" if bad else None


def wrong_kind(buffer: object, shape: tuple[int, ...] | None) -> str | None:
    """What is wrong with the type or the shape (None: any) of what should be a float32 buffer."""
    if not isinstance(buffer, np.ndarray) or buffer.dtype != np.float32:
        return f"are {getattr(buffer, 'dtype', type(buffer).__name__)}, not float32"
    if shape is not None and buffer.shape != shape:
        return f"have the shape {buffer.shape}, not {shape}"
    return None


def not_finite(buffer: npt.NDArray[np.float32]) -> int:
    """How many; without temporaries of the buffer's size where all is well."""
    if not buffer.size or (np.isfinite(buffer.max()) and np.isfinite(buffer.min())):
        return 0
    return int(np.count_nonzero(~np.isfinite(buffer)))
