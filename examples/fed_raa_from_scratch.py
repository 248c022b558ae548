"""Fed-RAA from scratch: each device trains one fragment of the model, and the server never waits (Algorithms 1 and 2).

This program uses the random numbers of `fedraa run`. So it has the same events and, up to rounding, the same
parameters. tests/simulation/test_from_scratch.py checks this.
"""

import heapq
from functools import partial
from itertools import pairwise

import numpy as np
from sklearn.datasets import load_digits

from fedraa.rng import generator

FEATURES, HIDDEN, CLASSES = 64, 40, 10
RATIOS, RHO = (0.1, 0.2, 0.3, 0.4), 0.005


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


def cut_fragments(size, ratios):
    """Return the coordinates of each fragment: the weights of its share of the hidden units, and the output bias."""
    w1, b1, w2, b2 = split_layers(np.arange(size))
    ends = np.round(np.cumsum([0, *ratios]) * len(b1)).astype(int)
    return [np.concatenate([w1[a:b].ravel(), b1[a:b], w2[:, a:b].ravel(), b2]) for a, b in pairwise(ends)]


def local_sgd(received, x, y, rng, lr=0.05, momentum=0.5, epochs=5, batch=32):
    """Return the weights after local epochs of SGD on f(w) + rho/2 ||w - received||^2."""
    w, v = received, np.zeros_like(received)
    for _ in range(epochs):
        for rows in np.split(rng.permutation(len(y)), range(batch, len(y), batch)):
            g = gradient(w, x[rows], y[rows]) + RHO * (w - received)
            v = momentum * v + g
            w = w - lr * v
    return w


def delay_bound(costs):
    """Return K* of Theorem 2: the cost of the longest task if faster clients take larger fragments."""
    fast_first = np.argsort(costs.sum(axis=1), kind="stable")
    large_first = np.argsort(-costs.sum(axis=0), kind="stable")
    ranks = -(-np.arange(1, len(costs) + 1) * costs.shape[1] // len(costs)) - 1
    return costs[fast_first, large_first[ranks]].max()


def train(theta, shards, costs, rng, updates, alpha=0.6, jitter=0.1, **local):
    """Return theta [d] after the updates, and the events: kind, time, task, client, fragment, version, staleness."""
    fragments = cut_fragments(len(theta), RATIOS)
    bound = delay_bound(costs)
    # The number of updates of each fragment so far, and the number of tasks of each client so far.
    q, turns = np.zeros(len(fragments), int), [0] * len(shards)
    events, queue = [], []
    idle, now = range(len(shards)), 0.0
    for _ in range(updates):
        for n in idle:
            # Algorithm 2: the least updated fragment within the delay bound, with a tolerance of one percent.
            feasible = np.flatnonzero(costs[n] <= 1.01 * bound)
            j = rng("schedule", n, turns[n]).choice(feasible[q[feasible] == q[feasible].min()])
            due = now + costs[n, j] * rng("jitter", n, turns[n]).uniform(1 - jitter, 1 + jitter)
            events.append(("dispatch", now, sum(turns), n, j, q[j], None))
            heapq.heappush(queue, (due, sum(turns), n, turns[n], j, q[j], theta[fragments[j]]))
            turns[n] += 1
        # Algorithm 1: the next client returns its fragment. The weight is alpha for any staleness.
        now, task, n, turn, j, version, received = heapq.heappop(queue)
        w = local_sgd(received, *shards[n], rng("batches", n, turn), **local)
        staleness = q[j] - version
        theta[fragments[j]] = (1 - alpha) * theta[fragments[j]] + alpha * w
        q[j] += 1
        events.append(("commit", now, task, n, j, q[j], staleness))
        idle = [n]
    return theta, events


def main():
    x, y = load_digits(return_X_y=True)
    x = (x - x.mean()) / x.std()
    shards = [(x[n:1400:8], y[n:1400:8]) for n in range(8)]
    theta = generator(0, "start").uniform(-0.1, 0.1, HIDDEN * (FEATURES + 1 + CLASSES) + CLASSES)
    sizes = np.array([len(part) for part in cut_fragments(len(theta), RATIOS)])
    costs = sizes / len(theta) / np.repeat([1.0, 3.0], 4)[:, None]
    theta, events = train(theta, shards, costs, partial(generator, 0), updates=200)
    accuracy = (forward(theta, x[1400:])[1].argmax(axis=1) == y[1400:]).mean()
    print(f"{len(events)} events until time {events[-1][1]:.2f}: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
