"""Labels of tensor elements, and the ties between labels.

All modules of the tracer use these words:

- Unit: the smallest thing that can be cut (removed from a module), such as a neuron, a channel or an attention head.
- Label: an integer for each element of a tensor. Elements with equal labels belong to the same unit.
- `FIXED`: the label 0. Its elements are never cut.
- Tie: two labels of the same unit. Their elements must be cut together.
- Root label: the smallest of all labels that ties connect. It identifies the unit.
- Pin: a record that some labels are never cut. Their root label is `FIXED`.
- Element label: a label that only one element of a parameter has, until ties show the parameter's units.

Example: `nn.Linear(5, 3)` labels its three outputs, a ReLU keeps the labels, and the result is added to a bias `b`:

    labels of the outputs   [1, 2, 3]
    element labels of b     [7, 8, 9]
    ties                    1-7, 2-8, 3-9
    root labels of b        [1, 2, 3]

A cut that removes output 2 therefore also removes the second element of b.

Labels that are equal along a dimension are stored once and expanded. An image then needs one label per channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

FIXED = 0
"""The label of elements that are never cut."""

# The smallest element label. Parameters that the code uses as plain tensors, outside of a layer, get element labels.
_FIRST_ELEMENT_LABEL = 1 << 40


class Ties:
    """The ties and the pins of a trace.

    Each element of a tensor has a label, a number. Elements of tied labels must be cut together. Elements of a pinned
    label are never cut.
    """

    def __init__(self) -> None:
        self._next_unit_label = 1
        self._next_element_label = _FIRST_ELEMENT_LABEL
        self._pairs: list[np.ndarray] = []
        self._pins: list[tuple[np.ndarray, str | Callable[[], str]]] = []
        self._spans: list[tuple[np.ndarray, str]] = []

    def label_units(self, size: int) -> Tensor:
        """Return a new label for each unit along a dimension [size]. A single unit is never cut: its label is 0."""
        if size < 2:
            return torch.zeros(size, dtype=torch.int64)
        self._next_unit_label += size
        return torch.arange(self._next_unit_label - size, self._next_unit_label)

    def label_elements(self, shape: Sequence[int]) -> Tensor:
        """Return a new label for each element of a parameter of this shape.

        It is not known yet along which dimension the parameter's units lie. Ties that are recorded later show this.
        """
        size = int(np.prod(shape))
        if size < 2:
            return torch.zeros(tuple(shape), dtype=torch.int64)
        self._next_element_label += size
        return torch.arange(self._next_element_label - size, self._next_element_label).reshape(tuple(shape))

    def owns_labels(self, labels: Tensor) -> bool:
        """Return True if this object created all labels."""
        small = compress_labels(labels)[0]
        return bool(
            (
                ((small >= FIXED) & (small < self._next_unit_label))
                | ((small >= _FIRST_ELEMENT_LABEL) & (small < self._next_element_label))
            ).all()
        )

    def tie(self, left: Tensor, right: Tensor, reason: str = "it is combined with a tensor that is never cut") -> None:
        """Record that corresponding elements of two tensors must be cut together.

        The labels are broadcast against each other. If one of two elements is never cut, neither is the other.

        Args:
            left: Labels of the first tensor.
            right: Labels of the second tensor.
            reason: The explanation for users if this tie excludes elements from cuts.
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
        """Record that the elements with these labels are never cut, and the explanation for users.

        A function that returns the explanation is called only when a user needs it.
        """
        named = _distinct_labels(compress_labels(labels)[0].reshape(-1).numpy())
        named = named[named != FIXED]
        if named.size:
            self._pins.append((named, reason))

    def tie_along(self, labels: Tensor, dims: Sequence[int], reason: str) -> Tensor:
        """Record that all elements along some dimensions must be cut together.

        Args:
            labels: The labels of a tensor.
            dims: The dimensions.
            reason: The explanation for users if the ties exclude elements from cuts.

        Returns:
            The labels at index 0 of these dimensions. The dimensions stay and have size 1.
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
        """Return the labels of an elementwise result, such as `a + b`, from the labels of both tensors.

        The operation combines pairs of elements, and the two elements of a pair must be cut together. If one tensor is
        broadcast along a dimension, the units of the other tensor along this dimension can still be cut one by one.
        """
        shape = np.broadcast_shapes(left.shape, right.shape)
        a, b = left.expand(shape), right.expand(shape)
        along_a, along_b = ({d for d in range(len(shape)) if varies_along(x, d)} for x in (a, b))
        wide_a, wide_b = _broadcast_dims(left.shape, shape), _broadcast_dims(right.shape, shape)
        if along_a and along_b and not along_a & along_b:
            # This is an outer product. Only one of its factors can be cut.
            if self._should_pin(b, a):
                self.pin(b, "it scales positions, which are never cut")
                b, along_b = torch.zeros_like(b), set()
            else:
                self.pin(a, "it scales positions, which are never cut")
                a, along_a = torch.zeros_like(a), set()
        elif along_a and not along_b and along_a <= wide_b:
            # `b` has the same label everywhere. A tie with it would connect all units of `a`.
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
            # The labels of `a` and `b` are tied now. The result gets the labels that vary along fewer dimensions.
            if along_b < along_a and b.all():
                a, b = b, a
        small_a, small_b = _shrink_labels(a, b)
        return torch.where(small_a != FIXED, small_a, small_b).expand(shape)

    def _should_pin(self, labels: Tensor, other: Tensor) -> bool:
        """Return True to exclude the units of `labels` from cuts, False to exclude those of `other`.

        A tensor is excluded if all its labels come from `label_elements`, or if its units are never cut. If neither
        tensor is such a tensor, the one with fewer distinct labels is excluded.
        """
        if are_element_labels(labels) or self._is_fixed(labels):
            return True
        if are_element_labels(other) or self._is_fixed(other):
            return False
        return _count_labels(labels) <= _count_labels(other)

    def _span_reason(self, labels: Tensor) -> Callable[[], str]:
        """Return a function that returns the reason of the last call of `tie_along` that affects these labels."""
        mine = compress_labels(labels)[0].reshape(-1).numpy()
        spans = len(self._spans)

        def find_reason() -> str:
            reasons = (text for noted, text in reversed(self._spans[:spans]) if np.isin(mine, noted).any())
            return next(reasons, "it scales positions, which are never cut")

        return find_reason

    def _is_fixed(self, labels: Tensor) -> bool:
        """Return True if the ties and pins so far prevent a cut of any element with one of these labels."""
        return bool((self.resolve()(compress_labels(labels)[0]) == FIXED).all())

    def reason(self, labels: Tensor, roots: Roots) -> str:
        """Return the reason why the elements with these labels are never cut.

        The reason was passed to the first call of `pin` that affects the labels. If no call does, it was passed
        to the first call of `tie_along` that affects them. Otherwise the labels belong to a single unit.

        Args:
            labels: The labels.
            roots: The root labels of all labels.
        """
        mine = roots.component(labels)
        for noted, reason in (*self._pins, *self._spans):
            if np.isin(roots.component(torch.from_numpy(noted)), mine).any():
                return reason() if callable(reason) else reason
        if _count_labels(labels) > 1:
            return "all its units can only be cut together"
        return "it is a single unit"

    def resolve(self) -> Roots:
        """Return the map from labels to root labels, after all ties and pins so far."""
        return Roots(
            self._next_unit_label,
            self._next_element_label - _FIRST_ELEMENT_LABEL,
            self._pairs,
            [pinned for pinned, _ in self._pins],
        )


class Roots:
    """The map from each label to its root label: the smallest of all labels of the same unit."""

    def __init__(
        self, unit_labels: int, element_labels: int, pairs: Sequence[np.ndarray], pins: Sequence[np.ndarray]
    ) -> None:
        """Compute the root labels.

        Args:
            unit_labels: Number of labels from `label_units`, plus one for the label FIXED.
            element_labels: Number of labels from `label_elements`.
            pairs: Arrays [2, ties]. Each column has two labels that are tied.
            pins: The labels that are never cut.
        """
        self._unit_labels = unit_labels
        root = np.arange(unit_labels + element_labels)
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
        return np.where(labels >= _FIRST_ELEMENT_LABEL, labels - _FIRST_ELEMENT_LABEL + self._unit_labels, labels)

    def component(self, labels: Tensor) -> np.ndarray:
        """Return, for each label, the smallest label of its unit, even if the unit is never cut."""
        return np.asarray(self._component[self._find_nodes(labels.numpy())])

    def __call__(self, labels: Tensor) -> np.ndarray:
        """Return the root label of each label: the smallest label of its unit, or FIXED (0) if it is never cut."""
        return np.asarray(self._root[self._find_nodes(labels.numpy())])


def compress_labels(*labels: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors of labels without repeated values: a dimension that all of them expand gets size 1.

    All tensors must have the same shape. A tensor without dimensions gets the shape [1].
    """
    return tuple(x.reshape(x.shape or (1,)) for x in _shrink_labels(*labels))


def varies_along(labels: Tensor, dim: int) -> bool:
    """Return True if the labels differ along a dimension."""
    if labels.size(dim) < 2 or labels.stride(dim) == 0:
        return False
    small = _shrink_labels(labels)[0]
    return bool((small != small.narrow(dim, 0, 1)).any())


def _shrink_labels(*labels: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors of labels. A dimension that all of them expand (stride 0) gets size 1."""
    for dim in range(labels[0].dim()):
        if labels[0].size(dim) > 1 and all(x.stride(dim) == 0 for x in labels):
            labels = tuple(x.narrow(dim, 0, 1) for x in labels)
    return labels


def _count_labels(labels: Tensor) -> int:
    return len(_distinct_labels(compress_labels(labels)[0].reshape(-1).numpy()))


def _distinct_labels(labels: np.ndarray) -> np.ndarray:
    """Return the distinct labels, ascending. For nearly sorted labels, `np.unique` is many times slower."""
    ordered = np.sort(labels, kind="stable")
    return np.asarray(ordered[np.concatenate([np.ones(min(1, len(ordered)), dtype=bool), ordered[1:] != ordered[:-1]])])


def _distinct_pairs(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    order = np.lexsort((right, left))
    pairs = np.stack([left[order], right[order]])
    return pairs[:, np.concatenate([[True], (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)])]


def _broadcast_dims(shape: Sequence[int], out: Sequence[int]) -> set[int]:
    """Return the dimensions of the shape `out` along which a tensor of shape `shape` is broadcast."""
    missing = len(out) - len(shape)
    return {d for d in range(len(out)) if d < missing or shape[d - missing] == 1}


def are_element_labels(labels: Tensor) -> bool:
    """Return True if each label is 0 or comes from `Ties.label_elements`, which labels elements of unknown units."""
    small = _shrink_labels(labels)[0]
    return bool(((small == FIXED) | (small >= _FIRST_ELEMENT_LABEL)).all())
