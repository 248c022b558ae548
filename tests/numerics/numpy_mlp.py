"""A ReLU network with one hidden layer, forward, backward and its local training, by hand in NumPy float64.

Nothing here comes from the package, so that tests may compare the package with it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Batch = tuple[npt.NDArray[np.floating], npt.NDArray[np.int64]]


class Weights(NamedTuple):
    """h = relu(w1 x + b1), logits = w2 h + b2; w1 [hidden, in], b1 [hidden], w2 [classes, hidden], b2 [classes]."""

    w1: Array
    b1: Array
    w2: Array
    b2: Array

    @classmethod
    def of(cls, flat: npt.NDArray[np.floating], features: int, hidden: int, classes: int) -> "Weights":
        """From the layout of torch's Linear layers, one after the other."""
        ends = np.cumsum([features * hidden, hidden, hidden * classes])
        w1, b1, w2, b2 = np.split(flat.astype(np.float64), ends)
        return cls(w1.reshape(hidden, features), b1, w2.reshape(classes, hidden), b2)

    def flat(self) -> Array:
        return np.concatenate([part.ravel() for part in self])

    def neurons(self, kept: Sequence[int]) -> "Weights":
        """The network of the kept hidden neurons alone; the output bias goes with every choice of them."""
        return Weights(self.w1[kept].copy(), self.b1[kept].copy(), self.w2[:, kept].copy(), self.b2.copy())

    def put(self, kept: Sequence[int], part: "Weights") -> "Weights":
        """With the kept neurons and the output bias as in the part."""
        w1, b1, w2 = self.w1.copy(), self.b1.copy(), self.w2.copy()
        w1[kept], b1[kept], w2[:, kept] = part.w1, part.b1, part.w2
        return Weights(w1, b1, w2, part.b2.copy())

    def plus(self, scale: float, other: "Weights") -> "Weights":
        return Weights(*(mine + scale * its for mine, its in zip(self, other, strict=True)))

    def logits(self, x: npt.NDArray[np.floating]) -> Array:
        return np.asarray(np.maximum(x @ self.w1.T + self.b1, 0) @ self.w2.T + self.b2)


ZERO = Weights(*(np.zeros(()) for _ in range(4)))


def mean(parts: Sequence[Weights], shares: Sequence[float]) -> Weights:
    return Weights(*(sum(s * p for s, p in zip(shares, column, strict=True)) for column in zip(*parts, strict=True)))


def gradient(theta: Weights, x: npt.NDArray[np.floating], y: npt.NDArray[np.int64]) -> Weights:
    """Of the mean cross-entropy of softmax(logits): d loss / d logits = (p - onehot(y)) / n, then the chain rule."""
    before = x @ theta.w1.T + theta.b1
    hidden = np.maximum(before, 0)
    logits = hidden @ theta.w2.T + theta.b2
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    error = p / len(y)
    back = (error @ theta.w2) * (before > 0)
    return Weights(back.T @ x, back.sum(axis=0), error.T @ hidden, error.sum(axis=0))


def train(
    received: Weights,
    batches: Iterable[Batch],
    *,
    lr: float,
    momentum: float = 0.0,
    proximal: float = 0.0,
    sam: float = 0.0,
) -> Weights:
    """v <- momentum v + g + proximal (w - received); w <- w - lr v, with g at w + sam g / |g| where sam is on."""
    w, v = received, ZERO
    for x, y in batches:
        g = gradient(w, x, y)
        if sam:
            g = gradient(w.plus(sam / float(np.linalg.norm(g.flat())), g), x, y)
        g = g.plus(proximal, w.plus(-1, received))
        v = g.plus(momentum, v)
        w = w.plus(-lr, v)
    return w
