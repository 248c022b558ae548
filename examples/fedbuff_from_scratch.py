"""FedBuff from scratch: the server collects deltas in a buffer, and applies a full buffer (Nguyen et al. 2022).

This program uses the random numbers of `fedraa run`. So it has the same events and, up to rounding, the same
parameters. tests/simulation/test_from_scratch.py checks this.
"""

import heapq
from functools import partial

import numpy as np
from sklearn.datasets import load_digits

from fedraa.rng import generator

FEATURES, HIDDEN, CLASSES = 64, 40, 10
# The duration of a task differs from its cost by at most this share.
JITTER = 0.1


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


def local_sgd(received, x, y, rng, lr=0.05, momentum=0.0, epochs=5, batch=32):
    """Return the weights after local epochs of SGD with momentum on f(w)."""
    w = received
    v = np.zeros_like(w)
    for _ in range(epochs):
        for rows in np.split(rng.permutation(len(y)), range(batch, len(y), batch)):
            g = gradient(w, x[rows], y[rows])
            v = momentum * v + g
            w = w - lr * v
    return w


def staleness_weight(staleness):
    """Return s(k) = (k + 1)^(-1/2), the weight of an update with staleness k."""
    return (staleness + 1) ** -0.5


def train(theta, shards, costs, rng, updates, concurrency, buffer_size, server_lr=1.0, **local):
    """Return theta [d] after the updates, and the events: kind, time, task, client, fragment, version, staleness."""
    # The number of updates of the model so far.
    version = 0
    buffer = np.zeros_like(theta)
    # The number of tasks of each client so far.
    turns = [0] * len(shards)
    events, queue = [], []
    idle = rng("concurrency start").choice(len(shards), concurrency, replace=False).tolist()
    now = 0.0
    while version < updates:
        for n in idle:
            due = now + costs[n, 0] * rng("jitter", n, turns[n]).uniform(1 - JITTER, 1 + JITTER)
            events.append(("dispatch", now, sum(turns), n, 0, version, None))
            heapq.heappush(queue, (due, sum(turns), n, turns[n], version, theta))
            turns[n] += 1
        # The next client returns its delta. The weight of the delta falls with its staleness in versions.
        now, task, n, turn, sent_version, received = heapq.heappop(queue)
        delta = local_sgd(received, *shards[n], rng("batches", n, turn), **local) - received
        staleness = version - sent_version
        buffer = buffer + staleness_weight(staleness) * delta
        arrivals = sum(turns) - len(queue)
        if arrivals % buffer_size == 0:
            theta = theta + server_lr / buffer_size * buffer
            buffer = np.zeros_like(theta)
            version += 1
        events.append(("commit", now, task, n, 0, version, staleness))
        # A random idle client gets the next task.
        draws = rng("concurrency", task)
        busy = [entry[2] for entry in queue]
        idle = [int(draws.integers(len(shards)))]
        while idle[0] in busy:
            idle = [int(draws.integers(len(shards)))]
    return theta, events


def main():
    x, y = load_digits(return_X_y=True)
    x = (x - x.mean()) / x.std()
    shards = [(x[n:1400:8], y[n:1400:8]) for n in range(8)]
    theta = generator(0, "start").uniform(-0.1, 0.1, HIDDEN * (FEATURES + 1 + CLASSES) + CLASSES)
    # Four slow devices, and four that are three times as fast.
    costs = 1 / np.repeat([1.0, 3.0], 4)[:, None]
    rng = partial(generator, 0)
    theta, events = train(theta, shards, costs, rng, updates=40, concurrency=4, buffer_size=3)
    accuracy = (forward(theta, x[1400:])[1].argmax(axis=1) == y[1400:]).mean()
    print(f"{len(events)} events until time {events[-1][1]:.2f}: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
