"""The sizes of a model with two hidden layers, and the assignments that a policy draws for it."""

from typing import Any

import numpy as np

from fedraa.submodels import Traced
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import RoundContext, RunContext

# The model has two hidden layers between 3 features and 2 classes.
FIRST, SECOND, SIZE = 8, 4, 8 * 3 + 8 + 4 * 8 + 4 + 2 * 4 + 2
CLIENTS, SEED = 6, 5
# These policies are bound to a run.
Policy = Any
THETA = np.random.default_rng(2).normal(size=SIZE).astype(np.float32)


def round_context(run: RunContext, client: int, round: int) -> RoundContext:
    return RoundContext(client, round, client, run.clients, 0.0, THETA, run)


def draws(policy: Policy, net: Traced, rounds: int, clients: int = CLIENTS, seed: int = SEED) -> list[list[Assignment]]:
    """Return the assignments by round and client. All clients are in every cohort."""
    run = RunContext(net, clients, seed)
    sampler = policy.bind(run)
    return [[sampler.draw(round_context(run, n, r)) for n in range(clients)] for r in range(rounds)]


def trained(choice: Assignment) -> np.ndarray:
    """Return a vector [d] with 1 for each trained coordinate of the full model."""
    mask = np.zeros(SIZE, int)
    mask[choice.where] = 1
    return mask
