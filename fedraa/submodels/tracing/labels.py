"""Labels of units, and the ties between them.

All modules of the tracer use these words:

- Unit: the smallest thing that can be cut (removed), such as a neuron, a channel or an attention head. A cut is a
  smaller module without some units.
- Label: an integer that names the unit of an element of a tensor. During a trace, every activation has a tensor of
  labels. The label 0 (`FIXED`) means that the element is never cut.
- Tie: two labels with elements that must be cut together, such as output 3 of a layer and input 3 of the next layer.
- Root: the smallest of all labels that ties connect. All labels of a unit have the same root. The root of a label that
  is never cut is `FIXED`.
- Pin: a record that some labels are never cut.
- Position: an index along a dimension without units, such as a pixel or a token.

Labels that are equal at all positions are stored once and expanded. An image then needs one value per channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

FIXED = 0
"""The label of elements that are never cut."""

# Labels above this number belong to parameters that the code uses as plain tensors, outside of a layer.
_RAW = 1 << 40


class Ties:
    """The labels that must be cut together, collected during a trace."""

    def __init__(self) -> None:
        self._fresh = 1
        self._raw = _RAW
        self._pairs: list[np.ndarray] = []
        self._pins: list[tuple[np.ndarray, str | Callable[[], str]]] = []
        self._spans: list[tuple[np.ndarray, str]] = []

    def fresh(self, size: int) -> Tensor:
        """Return new labels [size] for one dimension, or the label 0 (never cut) for a size of 1."""
        if size < 2:
            return torch.zeros(size, dtype=torch.int64)
        self._fresh += size
        return torch.arange(self._fresh - size, self._fresh)

    def raw(self, shape: Sequence[int]) -> Tensor:
        """Return a new label for each element of a parameter.

        Later operations show along which dimension its units lie.
        """
        size = int(np.prod(shape))
        if size < 2:
            return torch.zeros(tuple(shape), dtype=torch.int64)
        self._raw += size
        return torch.arange(self._raw - size, self._raw).reshape(tuple(shape))

    def owns_labels(self, labels: Tensor) -> bool:
        """Return True if this object created all labels."""
        small = compress_labels(labels)[0]
        return bool((((small >= FIXED) & (small < self._fresh)) | ((small >= _RAW) & (small < self._raw))).all())

    def tie(self, left: Tensor, right: Tensor, reason: str = "it is combined with a tensor that is never cut") -> None:
        """Record that corresponding elements of `left` and `right` (after broadcasting) must be cut together.

        If one of them is never cut, neither is the other.

        Args:
            left: Labels.
            right: Labels.
            reason: Explanation for labels that are never cut because of this tie.
        """
        shape = np.broadcast_shapes(left.shape, right.shape)
        a, b = (x.reshape(-1).numpy() for x in compress_labels(left.expand(shape), right.expand(shape)))
        loose = (a != FIXED) & (b != FIXED)
        different = loose & (a != b)
        if different.any():
            self._pairs.append(_distinct_pairs(a[different], b[different]))
        if not loose.all():
            self.pin(torch.from_numpy(np.concatenate([a[~loose], b[~loose]])), reason)

    def pin(self, labels: Tensor, reason: str | Callable[[], str]) -> None:
        """Record that the elements with these labels are never cut.

        Args:
            labels: The labels.
            reason: An explanation for the user, or a function that returns it if it is slow to compute.
        """
        named = _distinct_labels(compress_labels(labels)[0].reshape(-1).numpy())
        named = named[named != FIXED]
        if named.size:
            self._pins.append((named, reason))

    def tie_along(self, labels: Tensor, dims: Sequence[int], reason: str) -> Tensor:
        """Record that all elements along `dims` must be cut together.

        Return the labels with size 1 in `dims`.

        Args:
            labels: The labels.
            dims: Dimensions along which to tie.
            reason: Explanation for labels that are never cut because of these ties.
        """
        first = labels
        for dim in dims:
            # A dimension of size 0 has no first element.
            first = first.narrow(dim, 0, 1) if first.size(dim) else first.sum(dim, keepdim=True)
        if any(varies_along(labels, dim) for dim in dims):
            self.tie(labels, first, reason)
            self._spans.append((_distinct_labels(compress_labels(labels)[0].reshape(-1).numpy()), reason))
        return first

    def merge_labels(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the labels of the result of an elementwise function of two tensors.

        If one tensor is broadcast along a dimension, the other's units along it can still be cut separately.
        """
        shape = np.broadcast_shapes(left.shape, right.shape)
        a, b = left.expand(shape), right.expand(shape)
        along_a, along_b = ({d for d in range(len(shape)) if varies_along(x, d)} for x in (a, b))
        wide_a, wide_b = _broadcast_dims(left.shape, shape), _broadcast_dims(right.shape, shape)
        if along_a and along_b and not along_a & along_b:
            # This is an outer product, of which only one side can be cut.
            if self._rather_whole(b, a):
                self.pin(b, "it scales positions, which are never cut")
                b, along_b = torch.zeros_like(b), set()
            else:
                self.pin(a, "it scales positions, which are never cut")
                a, along_a = torch.zeros_like(a), set()
        elif along_a and not along_b and along_a <= wide_b:
            # Without the pin, ties with the only label of `b` would connect all units of `a`.
            self.pin(b, self._span_reason(b))
            b = torch.zeros_like(b)
        elif along_b and not along_a and along_b <= wide_a:
            self.pin(a, self._span_reason(a))
            a = torch.zeros_like(a)
        apart_a, apart_b = along_a - wide_b, along_b - wide_a
        if not b.any() and (apart_a != along_a or not along_a):
            a = self.tie_along(a, sorted(apart_a), "it is combined with a tensor that is never cut").expand(shape)
        elif not a.any() and (apart_b != along_b or not along_b):
            b = self.tie_along(b, sorted(apart_b), "it is combined with a tensor that is never cut").expand(shape)
        else:
            self.tie(a, b)
            # The labels are equivalent now, so the ones with fewer dimensions are kept.
            if along_b < along_a and b.all():
                a, b = b, a
        small_a, small_b = _shrink_labels(a, b)
        return torch.where(small_a != FIXED, small_a, small_b).expand(shape)

    def _rather_whole(self, labels: Tensor, other: Tensor) -> bool:
        """Return True if the units of `labels`, rather than those of `other`, should be excluded from cuts.

        Raw labels and labels that are never cut are excluded first, otherwise the tensor with fewer distinct labels.
        """
        if is_raw(labels) or self._is_fixed(labels):
            return True
        if is_raw(other) or self._is_fixed(other):
            return False
        return _count_labels(labels) <= _count_labels(other)

    def _span_reason(self, labels: Tensor) -> Callable[[], str]:
        """Return a function that explains why these units must be cut together."""
        mine = compress_labels(labels)[0].reshape(-1).numpy()
        spans = len(self._spans)

        def find_reason() -> str:
            reasons = (text for noted, text in reversed(self._spans[:spans]) if np.isin(mine, noted).any())
            return next(reasons, "it scales positions, which are never cut")

        return find_reason

    def _is_fixed(self, labels: Tensor) -> bool:
        """Return True if the ties and pins so far exclude all these labels from cuts."""
        return bool((self.resolve()(compress_labels(labels)[0]) == FIXED).all())

    def reason(self, labels: Tensor, roots: Roots) -> str:
        """Return the reason why these labels are never cut.

        It is that of the first `pin` that affects them, otherwise of the first `tie_along`.
        """
        mine = roots.component(labels)
        for noted, reason in (*self._pins, *self._spans):
            if np.isin(roots.component(torch.from_numpy(noted)), mine).any():
                return reason() if callable(reason) else reason
        if _count_labels(labels) > 1:
            return "all its units can only be cut together"
        return "it is a single unit"

    def resolve(self) -> Roots:
        """Return the roots of all labels after the ties and pins so far."""
        return Roots(self._fresh, self._raw - _RAW, self._pairs, [pinned for pinned, _ in self._pins])


class Roots:
    """The root of every label: the smallest label that ties connect with it."""

    def __init__(self, fresh: int, raw: int, pairs: Sequence[np.ndarray], pins: Sequence[np.ndarray]) -> None:
        self._fresh = fresh
        root = np.arange(fresh + raw)
        left, right = (self._find_nodes(x) for x in np.concatenate([np.zeros((2, 0), np.int64), *pairs], axis=1))
        while True:
            low, high = np.minimum(root[left], root[right]), np.maximum(root[left], root[right])
            if np.array_equal(low, high):
                break
            np.minimum.at(root, high, low)
            while not np.array_equal(root, root[root]):
                root = root[root]
        self._component: np.ndarray = root
        pinned = np.zeros(len(root), dtype=bool)
        pinned[FIXED] = True
        pinned[root[self._find_nodes(np.concatenate([np.zeros(0, np.int64), *pins]))]] = True
        self._root: np.ndarray = np.where(pinned[root], FIXED, root)

    def _find_nodes(self, labels: np.ndarray) -> np.ndarray:
        return np.where(labels >= _RAW, labels - _RAW + self._fresh, labels)

    def component(self, labels: Tensor) -> np.ndarray:
        """Return the smallest label that ties connect with each label. Pins have no effect."""
        return np.asarray(self._component[self._find_nodes(labels.numpy())])

    def __call__(self, labels: Tensor) -> np.ndarray:
        """Return the root of each label, or FIXED if the label is never cut."""
        return np.asarray(self._root[self._find_nodes(labels.numpy())])


def compress_labels(*labels: Tensor) -> tuple[Tensor, ...]:
    """Return the labels with size 1 in each dimension along which all tensors are expanded.

    The tensors must have the same shape.
    """
    return tuple(x.reshape(x.shape or (1,)) for x in _shrink_labels(*labels))


def varies_along(labels: Tensor, dim: int) -> bool:
    """Return True if labels differ along a dimension."""
    if labels.size(dim) < 2 or labels.stride(dim) == 0:
        return False
    small = _shrink_labels(labels)[0]
    return bool((small != small.narrow(dim, 0, 1)).any())


def _shrink_labels(*labels: Tensor) -> tuple[Tensor, ...]:
    """Return the labels with size 1 in each dimension along which all tensors are expanded."""
    for dim in range(labels[0].dim()):
        if labels[0].size(dim) > 1 and all(x.stride(dim) == 0 for x in labels):
            labels = tuple(x.narrow(dim, 0, 1) for x in labels)
    return labels


def _count_labels(labels: Tensor) -> int:
    return len(_distinct_labels(compress_labels(labels)[0].reshape(-1).numpy()))


def _distinct_labels(labels: np.ndarray) -> np.ndarray:
    """Return the distinct labels, ascending. It is many times faster than `np.unique` for nearly sorted labels."""
    ordered = np.sort(labels, kind="stable")
    return np.asarray(ordered[np.concatenate([np.ones(min(1, len(ordered)), dtype=bool), ordered[1:] != ordered[:-1]])])


def _distinct_pairs(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    order = np.lexsort((right, left))
    pairs = np.stack([left[order], right[order]])
    return pairs[:, np.concatenate([[True], (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)])]


def _broadcast_dims(shape: Sequence[int], out: Sequence[int]) -> set[int]:
    """Return the dimensions of the shape `out` along which a tensor of this shape is broadcast."""
    missing = len(out) - len(shape)
    return {d for d in range(len(out)) if d < missing or shape[d - missing] == 1}


def is_raw(labels: Tensor) -> bool:
    """Return True if all labels come from `Ties.raw`, so that the dimension of their units is unknown."""
    small = _shrink_labels(labels)[0]
    return bool(((small == FIXED) | (small >= _RAW)).all())
