"""A ReLU network in NumPy float64: forward pass, gradients and local training.

The parameters are one flat vector in the layout of torch's Linear layers: for each layer the weight [out, in], then the
bias [out]. `widths` are the sizes (features, hidden ..., classes). For one hidden layer, `Weights` names the tensors.
This module imports nothing from fedraa, so that tests can compare fedraa with it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
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
        """Return the weights of a flat vector in the layout of torch's Linear layers."""
        ends = np.cumsum([features * hidden, hidden, hidden * classes])
        w1, b1, w2, b2 = np.split(flat.astype(np.float64), ends)
        return cls(w1.reshape(hidden, features), b1, w2.reshape(classes, hidden), b2)

    def flat(self) -> Array:
        return np.concatenate([part.ravel() for part in self])

    def neurons(self, kept: Sequence[int]) -> "Weights":
        """Return the network of only these hidden neurons. It also has the output bias."""
        return Weights(self.w1[kept].copy(), self.b1[kept].copy(), self.w2[:, kept].copy(), self.b2.copy())

    def put(self, kept: Sequence[int], part: "Weights") -> "Weights":
        """Return the weights with these neurons and the output bias replaced by the values of the part."""
        w1, b1, w2 = self.w1.copy(), self.b1.copy(), self.w2.copy()
        w1[kept], b1[kept], w2[:, kept] = part.w1, part.b1, part.w2
        return Weights(w1, b1, w2, part.b2.copy())

    def plus(self, scale: float, other: "Weights") -> "Weights":
        return Weights(*(mine + scale * its for mine, its in zip(self, other, strict=True)))

    def logits(self, x: npt.NDArray[np.floating]) -> Array:
        return np.asarray(np.maximum(x @ self.w1.T + self.b1, 0) @ self.w2.T + self.b2)


def mean(parts: Sequence[Weights], shares: Sequence[float]) -> Weights:
    return Weights(*(sum(s * p for s, p in zip(shares, column, strict=True)) for column in zip(*parts, strict=True)))


def gradient(theta: Weights, x: npt.NDArray[np.floating], y: npt.NDArray[np.int64]) -> Weights:
    """Return the gradient of the mean cross-entropy of softmax(logits)."""
    widths = _widths(theta)
    return Weights.of(loss_gradient(theta.flat(), x, y, widths)[1], *widths)


def train(received: Weights, batches: Iterable[Batch], **terms: float) -> Weights:
    """Return the weights after `sgd`."""
    widths = _widths(received)
    return Weights.of(sgd(received.flat(), batches, widths, **terms), *widths)


def _widths(theta: Weights) -> tuple[int, int, int]:
    hidden, features = theta.w1.shape
    return features, hidden, len(theta.b2)


def layers(theta: Array, widths: Sequence[int]) -> list[tuple[Array, Array]]:
    """Return weight [out, in] and bias [out] of every layer, as views of the flat vector [d]."""
    parts, start = [], 0
    for fan_in, fan_out in pairwise(widths):
        end = start + fan_out * fan_in
        parts.append((theta[start:end].reshape(fan_out, fan_in), theta[end : end + fan_out]))
        start = end + fan_out
    assert start == len(theta)
    return parts


def forward(theta: Array, x: npt.NDArray[np.floating], widths: Sequence[int]) -> list[Array]:
    """Return the input of every layer, beginning with x, and at the end the logits."""
    read = [x.astype(np.float64)]
    for number, (weight, bias) in enumerate(layers(theta, widths), 1):
        before = read[-1] @ weight.T + bias
        read.append(before if number == len(widths) - 1 else np.maximum(before, 0))
    return read


def gradients(
    theta: Array, x: npt.NDArray[np.floating], y: npt.NDArray[np.int64], widths: Sequence[int]
) -> tuple[float, Array, Array]:
    """Return the mean cross-entropy of softmax(logits), and its gradients by theta [d] and by x [n, features].

    d loss / d logits = (p - onehot(y)) / n, then the chain rule, layer by layer.
    """
    *read, logits = forward(theta, x, widths)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = -float(np.log(p[rows, y]).mean())
    p[rows, y] -= 1
    error, parts = p / len(y), []
    for number, (weight, _) in reversed([*enumerate(layers(theta, widths))]):
        parts += [error.sum(axis=0), (error.T @ read[number]).ravel()]
        error = error @ weight
        if number:
            error = error * (read[number] > 0)
    return loss, np.concatenate(parts[::-1]), error


def loss_gradient(
    theta: Array,
    x: npt.NDArray[np.floating],
    y: npt.NDArray[np.int64],
    widths: Sequence[int],
    mask: npt.NDArray[np.bool_] | None = None,
) -> tuple[float, Array]:
    """Return the loss f and its gradient [d]. With a mask m [d], return f(m theta) and m grad f(m theta)."""
    if mask is None:
        return gradients(theta, x, y, widths)[:2]
    loss, g, _ = gradients(theta * mask, x, y, widths)
    return loss, g * mask


def sgd(
    theta: npt.NDArray[np.floating],
    batches: Iterable[Batch],
    widths: Sequence[int],
    *,
    lr: float,
    momentum: float = 0.0,
    prox_mu: float = 0.0,
    sam_rho: float = 0.0,
    mask: npt.NDArray[np.bool_] | None = None,
    transform: Callable[[Array], Array] = lambda g: g,
) -> Array:
    """v <- momentum v + transform(g) + prox_mu (w - received); w <- w - lr v, from w = received = theta [d].

    g is the minibatch gradient; with `sam_rho`, g is the gradient at w + sam_rho g / |g|. With a mask m [d] the client
    receives and trains m theta. SAM's norm is over the trained coordinates only, and `transform(g)` is masked.
    """
    received = theta.astype(np.float64) if mask is None else theta * mask.astype(np.float64)
    w, v = received, np.zeros(len(theta))
    for x, y in batches:
        _, g = loss_gradient(w, x, y, widths, mask)
        if sam_rho:
            _, g = loss_gradient(w + sam_rho * g / np.linalg.norm(g), x, y, widths, mask)
        g = transform(g) + prox_mu * (w - received)
        v = momentum * v + (g if mask is None else g * mask)
        w = w - lr * v
    return w
