"""FedAvg from scratch: rounds of local SGD, and the mean of the clients' models (McMahan et al. 2017, Algorithm 1).

This program uses the random numbers of `fedraa run`. So it draws the same cohorts and, up to rounding, trains the same
parameters. tests/simulation/test_from_scratch.py checks this.
"""

from functools import partial

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedraa.rng import generator

FEATURES, HIDDEN, CLASSES = 64, 40, 10


def build_network(theta):
    """Return a network of one hidden layer with the parameters theta [d]."""
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES))
    vector_to_parameters(torch.tensor(theta, dtype=torch.float32), model.parameters())
    return model


def local_sgd(theta, x, y, rng, lr=0.05, momentum=0.5, epochs=5, batch=32):
    """Return the parameters [d] after local epochs of SGD. Each epoch has another order of the samples."""
    model = build_network(theta)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    for _ in range(epochs):
        for rows in np.split(rng.permutation(len(y)), range(batch, len(y), batch)):
            optimizer.zero_grad()
            cross_entropy(model(torch.tensor(x[rows])), torch.tensor(y[rows])).backward()
            optimizer.step()
    return parameters_to_vector(model.parameters()).detach().numpy()


def train(theta, shards, costs, rng, rounds, cohort_size, jitter=0.1, **local):
    """Return theta [d] after the rounds, and the time and the cohort of each round."""
    sizes = np.array([len(y) for _, y in shards])
    # The number of tasks of each client so far.
    turns = [0] * len(shards)
    events = []
    now = 0.0
    for k in range(rounds):
        cohort = sorted(rng("cohort", k, 0).choice(len(shards), cohort_size, replace=False).tolist())
        models = [local_sgd(theta, *shards[n], rng("batches", n, turns[n]), **local) for n in cohort]
        # Theta becomes the mean of the clients' models, weighted by their numbers of samples.
        theta = np.average(models, axis=0, weights=sizes[cohort])
        # The round ends when the slowest client of its cohort is done.
        now = max(now + costs[n, 0] * rng("jitter", n, turns[n]).uniform(1 - jitter, 1 + jitter) for n in cohort)
        events.append((now, cohort))
        for n in cohort:
            turns[n] += 1
    return theta, events


def main():
    x, y = load_digits(return_X_y=True)
    x = ((x - x.mean()) / x.std()).astype(np.float32)
    shards = [(x[n:1400:8], y[n:1400:8]) for n in range(8)]
    theta = generator(0, "start").uniform(-0.1, 0.1, HIDDEN * (FEATURES + 1 + CLASSES) + CLASSES)
    # Four slow devices, and four that are three times as fast.
    costs = 1 / np.repeat([1.0, 3.0], 4)[:, None]
    theta, events = train(theta, shards, costs, partial(generator, 0), rounds=20, cohort_size=3)
    accuracy = (build_network(theta)(torch.tensor(x[1400:])).argmax(axis=1).numpy() == y[1400:]).mean()
    print(f"{len(events)} rounds until time {events[-1][0]:.2f}: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
