"""FedRolex from scratch: clients train a window of hidden units, which moves each round (Alam et al. 2022).

This program uses the random numbers of `fedraa run`. So it has the same coverage and, up to rounding, the same
parameters. tests/simulation/test_from_scratch.py checks this.
"""

import math
from functools import partial

import numpy as np
from sklearn.datasets import load_digits

from fedraa.rng import generator

FEATURES, HIDDEN, CLASSES = 64, 40, 10


def split_layers(theta):
    """Return w1 [hidden, features], b1 [hidden], w2 [classes, hidden] and b2 [classes], as views of theta [d]."""
    hidden = (len(theta) - CLASSES) // (FEATURES + 1 + CLASSES)
    w1, b1, w2, b2 = np.split(theta, np.cumsum([hidden * FEATURES, hidden, CLASSES * hidden]))
    return w1.reshape(hidden, FEATURES), b1, w2.reshape(CLASSES, hidden), b2


def forward(theta, x):
    """Return the hidden activations and the logits of the network relu(x w1' + b1) w2' + b2."""
    w1, b1, w2, b2 = split_layers(theta)
    h = np.maximum(x @ w1.T + b1, 0)
    return h, h @ w2.T + b2


def gradient(theta, x, y):
    """Return the gradient [d] of the mean cross-entropy."""
    h, z = forward(theta, x)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    dz = (p / p.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
    dh = dz @ split_layers(theta)[2] * (h > 0)
    return np.concatenate([(dh.T @ x).ravel(), dh.sum(axis=0), (dz.T @ h).ravel(), dz.sum(axis=0)])


def window_coordinates(size, capacity, start):
    """Return the coordinates of the weights of a window of hidden units: the share `capacity` from unit `start` on."""
    w1, b1, w2, b2 = split_layers(np.arange(size))
    units = np.sort((start + np.arange(math.ceil(capacity * len(b1)))) % len(b1))
    return np.concatenate([w1[units].ravel(), b1[units], w2[:, units].ravel(), b2])


def local_sgd(received, x, y, rng, lr=0.05, momentum=0.9, epochs=5, batch=32):
    """Return the weights after local epochs of SGD with momentum on f(w)."""
    w = received
    v = np.zeros_like(w)
    for _ in range(epochs):
        for rows in np.split(rng.permutation(len(y)), range(batch, len(y), batch)):
            g = gradient(w, x[rows], y[rows])
            v = momentum * v + g
            w = w - lr * v
    return w


def train(theta, shards, costs, rng, rounds, capacities, jitter=0.1, **local):
    """Return theta [d] after the rounds, and the time and the smallest and largest coverage of each round."""
    events = []
    now = 0.0
    for k in range(rounds):
        total = np.zeros_like(theta)
        # The number of clients that trained each coordinate.
        coverage = np.zeros(len(theta), int)
        for n, (x, y) in enumerate(shards):
            mine = window_coordinates(len(theta), capacities[n % len(capacities)], start=k)
            total[mine] += local_sgd(theta[mine], x, y, rng("batches", n, k), **local)
            coverage[mine] += 1
        # Each coordinate becomes the mean over the clients that trained it, or stays as it is if no client did.
        theta = np.where(coverage > 0, total / np.maximum(coverage, 1), theta)
        # The round ends when the slowest client is done.
        ends = [now + costs[n] * rng("jitter", n, k).uniform(1 - jitter, 1 + jitter) for n in range(len(shards))]
        now = max(ends)
        events.append((now, int(coverage.min()), int(coverage.max())))
    return theta, events


def main():
    x, y = load_digits(return_X_y=True)
    x = (x - x.mean()) / x.std()
    shards = [(x[n:1400:8], y[n:1400:8]) for n in range(8)]
    theta = generator(0, "start").uniform(-0.1, 0.1, HIDDEN * (FEATURES + 1 + CLASSES) + CLASSES)
    capacities = (1.0, 0.5)
    shares = [len(window_coordinates(len(theta), capacities[n % 2], start=0)) / len(theta) for n in range(8)]
    # Four slow devices, and four that are three times as fast.
    costs = shares / np.repeat([1.0, 3.0], 4)
    theta, events = train(theta, shards, costs, partial(generator, 0), rounds=20, capacities=capacities)
    accuracy = (forward(theta, x[1400:])[1].argmax(axis=1) == y[1400:]).mean()
    print(f"{len(events)} rounds until time {events[-1][0]:.2f}: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
