"""Checks of client updates, before any value of an update reaches the model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedraa.components.state import Stateful
from fedraa.errors import InputError, short_text
from fedraa.messages import KEPT_PREFIX, Receipt, RemoteBuffer, Task, Update, Vector
from fedraa.numbers import format_count
from fedraa.vectors.chunked import map_chunks, ordered_sum
from fedraa.vectors.finite import (
    LARGEST,
    at_most,
    count_not_finite,
    describe_unfit,
    find_largest,
    is_finite,
    wrong_kind,
)

# Maximum absolute value of an update, as a multiple of max(1, largest value that the client received).
MAX_GROWTH = 1e3
# Extra buffers of client updates that have one value per trained parameter.
PER_PARAMETER_BUFFERS = ("gradient", "squares")
AUTO = "auto"
# With `auto`, the largest allowed norm of an update, as a multiple of the median norm. Honest updates have smaller
# norms, even if numbers of samples differ tenfold.
NORM_FACTOR = 20
# The median norm is computed over this number of the last accepted updates.
MEDIAN_WINDOW = 50
# The median norm of a fragment, or of a size of submodels, is used only after this number of its accepted updates.
WARM_UP_UPDATES = 5

MaxNorm = float | Literal["auto"] | None


class Bounds(Stateful):
    """The checks of updates. The server checks updates in the order in which it applies them.

    With `auto`, an update's norm ||w - w_received|| may be at most `NORM_FACTOR` times the median norm of the last
    `MEDIAN_WINDOW` accepted updates of its fragment, or of sampled submodels of the same size. For the first
    `WARM_UP_UPDATES` of these updates, the bound is `NORM_FACTOR` times max(1, ||w_received||).
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_seen",)

    def __init__(self, max_norm: MaxNorm = None) -> None:
        self._max_norm = max_norm
        # The norms of the last accepted updates, by `Task.size_class`.
        self._seen: dict[int, list[float]] = {}

    def judge_update(self, update: Update, task: Task | None) -> str | None:
        """Return why the update is refused, or None if it is accepted. Record the norm of an accepted update."""
        if task is not None and update.receipt is None and not isinstance(task.buffer, RemoteBuffer):
            # All later checks use this receipt, so that the values are read only once.
            update = replace(update, receipt=receipt_of(task.params, update.params, norms=self._max_norm is not None))
        max_norm = self._max_norm if isinstance(self._max_norm, int | float) else None
        wrong = check_update(update, task, max_norm=max_norm)
        if wrong is not None or task is None:
            return wrong
        wrong = outgrown_values(update, task)
        if wrong is None and self._max_norm == AUTO:
            wrong = self._unusual_norm(update, task)
        return wrong

    def _unusual_norm(self, update: Update, task: Task) -> str | None:
        """Return why the update is refused, or None if its norm is within the bound of `auto`.

        The norm of an accepted update is recorded.
        """
        seen = self._seen.setdefault(task.size_class, [])
        norm, sent = update_norms(update, task)
        usual = 0.0
        if len(seen) >= WARM_UP_UPDATES:
            usual = median(seen)
        reference = "the median norm of its fragment's updates"
        if task.by_size:
            reference = "the median norm of updates of submodels of its size"
        if not usual:
            usual = max(1.0, sent)
            reference = "the norm of the received weights"
        if norm > NORM_FACTOR * usual:
            return f"the update's norm {norm:.4g} is over {NORM_FACTOR} times {reference}, {usual:.4g}"
        seen.append(norm)
        del seen[:-MEDIAN_WINDOW]
        return None


def check_update(update: Update, task: Task | None, *, max_norm: float | None = None) -> str | None:
    """Return why an update is no valid result of the task, or None if it is valid.

    Args:
        update: The client update.
        task: The task to which the update belongs, or None if no such task is in flight.
        max_norm: The bound on the norm of the delta, ||w - w_received||; None for no bound.
    """
    if task is None:
        return f"task {update.task} is not in flight"
    for name, value, expected in (
        ("task", update.task, task.id),
        ("client", update.client, task.client),
        ("fragment", update.fragment, task.fragment),
        ("version", update.version, task.version),
    ):
        if value != expected:
            return f"{name} is {value}; expected {expected}"
    wrong = _wrong_params(update, task)
    if wrong is not None:
        return f"params {wrong}"
    if not isinstance(update.extras, Mapping):
        return f"extras are {type(update.extras).__name__}, not a mapping"
    for name in task.asks:
        if name not in update.extras:
            return f"{name} is missing"
    for name, buffer in update.extras.items():
        wrong = wrong_kind(buffer, _expected_shape(name, task)) or _not_finite(buffer)
        if wrong is not None:
            return f"{name} {wrong}"
    if not isinstance(update.steps, int | np.integer) or update.steps < 1:
        return f"the steps are {short_text(update.steps)}"
    if not is_finite(update.loss):
        return f"the training loss is {update.loss}"
    if not is_finite(update.seconds) or update.seconds < 0:
        return f"the duration is {update.seconds} seconds"
    if max_norm is not None:
        norm, _ = update_norms(update, task)
        if norm > max_norm:
            return f"the update's norm {norm:.4g} is over the bound {max_norm:g}"
    return None


def outgrown_values(update: Update, task: Task) -> str | None:
    """Return why an update is refused if its values are finite but too large, otherwise None.

    Without this check, the next clients would receive damaged weights and fail, and the failures would count against
    these clients.
    """
    receipt = update.receipt or receipt_of(task.params, update.params)
    if receipt.largest > MAX_GROWTH * max(1.0, receipt.largest_sent):
        sent = receipt.largest_sent
        return f"params hold values up to {receipt.largest:.4g}, the received weights only up to {sent:.4g}"
    for name, buffer in update.extras.items():
        # A buffer that its client keeps is not checked. Squared gradients in it can exceed LARGEST without an error,
        # and no other client receives the buffer.
        if name.startswith(KEPT_PREFIX):
            continue
        largest = find_largest(buffer)
        if largest > LARGEST:
            return f"{name} hold values up to {largest:.4g}"
    return None


def model_defect(task: Task, update: Update | None) -> str | None:
    """Return the defect of the weights that the client received; None without a known defect."""
    if update is not None and update.receipt is not None:
        return describe_unfit(update.receipt.largest_sent)
    if isinstance(task.buffer, RemoteBuffer):
        return None
    return describe_unfit(find_largest(task.params))


def refuse_unsound(where: str, part: object, params: Vector, when: str = "") -> None:
    """Raise InputError if a component left values in the model that are too large or not finite.

    Args:
        where: The setting of the component.
        part: The component. The message contains its name.
        params: The model [d].
        when: Text at the end of the message, such as " with the update of client 3".
    """
    if at_most(params, LARGEST):
        return
    wrong = describe_unfit(find_largest(params))
    if wrong:
        raise InputError(where, f"{type(part).__name__} left {wrong} in the model{when}")


def update_norms(update: Update, task: Task) -> tuple[float, float]:
    """Return two norms: the norm of the delta, and the norm of the weights that the client received."""
    receipt = update.receipt or receipt_of(task.params, update.params, norms=True)
    return receipt.squared**0.5, receipt.squared_sent**0.5


def receipt_of(sent: Vector, new: object, push: str = "", *, norms: bool = False, is_piece: bool = False) -> Receipt:
    """Check a trained buffer or a piece of one. Return the result of the checks.

    Args:
        sent: Weights [k] that the client received.
        new: The trained buffer, of any type.
        push: The ID of the transfer in which the buffer was sent.
        norms: True to compute the norms.
        is_piece: True to measure the received weights even if the trained weights are small. They set the limit for the
            trained weights of other pieces.
    """
    wrong = wrong_kind(new, sent.shape)
    if wrong is not None:
        return Receipt(push, wrong=wrong)
    assert isinstance(new, np.ndarray)
    if not norms and not is_piece and at_most(new, MAX_GROWTH):
        # Trained values up to MAX_GROWTH are always allowed, so the received weights need no check.
        return Receipt(push)
    largest = find_largest(new)
    not_finite = count_not_finite(new, largest)
    largest_sent = find_largest(sent) if is_piece or not_finite or largest > MAX_GROWTH else 0.0
    receipt = Receipt(push, not_finite=not_finite, largest=largest, largest_sent=largest_sent)
    if not_finite or not norms:
        return receipt

    def squared_norms(piece: slice) -> tuple[float, float]:
        whole = sent[piece].astype(np.float64)
        change = new[piece].astype(np.float64) - whole
        return float(change @ change), float(whole @ whole)

    sums = map_chunks(new.size, squared_norms)
    squared = ordered_sum([change for change, _ in sums])
    squared_sent = ordered_sum([whole for _, whole in sums])
    return replace(receipt, squared=squared, squared_sent=squared_sent)


def join_receipts(push: str, pieces: Sequence[Receipt]) -> Receipt:
    """Return the check result of a whole buffer from the check results of its pieces."""
    return Receipt(
        push,
        wrong=next(filter(None, (piece.wrong for piece in pieces)), None),
        not_finite=sum(piece.not_finite for piece in pieces),
        squared=sum(piece.squared for piece in pieces),
        squared_sent=sum(piece.squared_sent for piece in pieces),
        largest=max(piece.largest for piece in pieces),
        largest_sent=max(piece.largest_sent for piece in pieces),
    )


def _wrong_params(update: Update, task: Task) -> str | None:
    if update.receipt is None:
        return wrong_kind(update.params, (task.size,)) or _not_finite(update.params)
    return update.receipt.wrong or _not_finite_text(update.receipt.not_finite)


def _expected_shape(name: str, task: Task) -> tuple[int, ...] | None:
    """Return the expected shape of an extra buffer of an update, or None if any shape is valid."""
    if name in PER_PARAMETER_BUFFERS:
        return (task.size,)
    return task.extra_values(name).shape if name in task.extras else None


def _not_finite(buffer: npt.NDArray[np.float32]) -> str | None:
    return _not_finite_text(count_not_finite(buffer, find_largest(buffer)))


def _not_finite_text(bad: int) -> str | None:
    if not bad:
        return None
    return f"hold {format_count(bad, 'value')} that {'is' if bad == 1 else 'are'} not finite"
