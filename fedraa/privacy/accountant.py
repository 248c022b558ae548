"""The privacy loss of a run. The library dp-accounting computes every epsilon.

    release b contains r_ib updates of client i:  sigma_i = noise / sqrt(sum over b of r_ib^2)
    epsilon = max over the clients of the epsilon of a Gaussian mechanism at sigma_i

A release is a step that the server makes public: a round, a full buffer, or one update. The formulas are exact, because
a composition of Gaussian mechanisms is a Gaussian mechanism. Sampling of clients reduces epsilon only if the method has
rounds, each client joins each round independently (Poisson sampling), and the cohort stays secret. It does not reduce
epsilon for cohorts of a fixed size, asynchronous updates, and submodels, because their coverage is public.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Any

from fedraa.privacy.privacy import refuse_missing_library

# With less noise, the distribution of the privacy loss takes too much memory: 38 GiB at 0.001.
MIN_SAMPLED_NOISE = 0.2
# With less noise, dp-accounting finds no epsilon.
MIN_NOISE = 1e-6

ADD_OR_REMOVE = "add or remove one client"
ZERO_UPDATE = "replace the updates of one client by zero"
ANY_UPDATE = "replace one client's updates by any other updates"


@dataclass(frozen=True)
class PrivacyTerms:
    """The settings of a run that determine its privacy loss.

    Attributes:
        noise: The noise multiplier.
        delta: The delta at which epsilon is computed.
        per_release: Number of updates in a buffer of an asynchronous server; None for rounds.
        sampling: Probability with which each client joins a round. None if sampling does not reduce epsilon.
        local: True if each client adds the noise itself.
    """

    noise: float
    delta: float
    per_release: int | None = None
    sampling: float | None = None
    local: bool = False

    def measure_loss(self, events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the privacy loss of a run from the events of its log, as summary.json stores it.

        `releases` is the number of results with noise: rounds, buffers or updates. With local privacy, `releases` is
        the largest number of tasks of a client. `epsilon` is None for an infinite epsilon.
        """
        if self.local:
            releases = count_tasks(events)
            epsilon = gaussian_epsilon(self.noise, releases, self.delta)
            adjacency = ANY_UPDATE
        else:
            groups = group_updates(events, self.per_release)
            releases = len(groups)
            if self.sampling is None:
                epsilon = gaussian_epsilon(self.noise, largest_squared(groups), self.delta)
                adjacency = ZERO_UPDATE
            else:
                epsilon = poisson_epsilon(self.noise, self.sampling, releases, self.delta)
                adjacency = ADD_OR_REMOVE
        bounded = None
        if isfinite(epsilon):
            bounded = epsilon
        return {"epsilon": bounded, "delta": self.delta, "releases": releases, "adjacency": adjacency}

    def described(self) -> dict[str, Any]:
        """Return these settings in the form of config.json."""
        return dict(vars(self))


def gaussian_epsilon(noise: float, squared: float, delta: float) -> float:
    """Return the epsilon of Gaussian releases without sampling.

    Args:
        noise: The noise multiplier of a release.
        squared: The square of a client's number of updates in a release, summed over all releases.
        delta: The delta of the privacy guarantee (epsilon, delta).
    """
    refuse_missing_library()
    import dp_accounting

    if squared == 0:
        return 0.0
    if noise / sqrt(squared) < MIN_NOISE:
        return inf
    return float(dp_accounting.get_epsilon_gaussian(noise / sqrt(squared), delta))


def poisson_epsilon(noise: float, share: float, rounds: int, delta: float) -> float:
    """Return the epsilon of rounds with Poisson sampling, by the distribution of the privacy loss (PLD).

    For noise below `MIN_SAMPLED_NOISE`, the result is the epsilon without sampling, which is larger.

    Args:
        noise: The noise multiplier of a round.
        share: Probability with which a client joins a round.
        rounds: Number of rounds, including rounds without clients.
        delta: The delta of the privacy guarantee (epsilon, delta).
    """
    refuse_missing_library()
    from dp_accounting.pld import PLDAccountant

    if not rounds:
        return 0.0
    if noise < MIN_SAMPLED_NOISE:
        return gaussian_epsilon(noise, rounds, delta)
    accountant = PLDAccountant()
    accountant.compose(_poisson_event(noise, share, rounds))
    return float(accountant.get_epsilon(delta))


def find_gaussian_noise(epsilon: float, squared: float, delta: float) -> float:
    """Return the noise multiplier at which `gaussian_epsilon` is `epsilon`."""
    refuse_missing_library()
    import dp_accounting

    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * sqrt(squared)


def find_poisson_noise(epsilon: float, share: float, rounds: int, delta: float) -> float:
    """Return the noise multiplier at which `poisson_epsilon` is `epsilon`."""
    refuse_missing_library()
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    # Sampling reduces epsilon, so the noise without sampling is an upper bound.
    low = find_gaussian_noise(epsilon, rounds, delta)
    if low < MIN_SAMPLED_NOISE:
        return low
    while poisson_epsilon(low, share, rounds, delta) <= epsilon:
        if low == MIN_SAMPLED_NOISE:
            return low
        low = max(MIN_SAMPLED_NOISE, low / 2)
    noise: float = dp_accounting.calibrate_dp_mechanism(
        PLDAccountant,
        lambda noise: _poisson_event(noise, share, rounds),
        epsilon,
        delta,
        dp_accounting.ExplicitBracketInterval(low, 2 * low),
        tol=1e-3,
    )
    return noise


def _poisson_event(noise: float, share: float, rounds: int) -> Any:
    import dp_accounting

    one_round = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    return dp_accounting.SelfComposedDpEvent(one_round, rounds)


def largest_squared(releases: Iterable[Iterable[int]]) -> int:
    """Square each client's number of updates in a release, and sum the squares over the releases.

    A release is the list of the clients of its updates. Each client has one such sum. Return the largest one.
    """
    squared: Counter[int] = Counter()
    for clients in releases:
        for client, count in Counter(clients).items():
            squared[client] += count**2
    return max(squared.values(), default=0)


def group_updates(events: Iterable[Mapping[str, Any]], per_release: int | None) -> list[list[int]]:
    """Return the clients of the updates in each release: in each round, or in each full buffer.

    Args:
        events: The events of the log.
        per_release: Number of updates in a buffer of an asynchronous server; None for rounds.
    """
    releases: list[list[int]] = [[]]
    for event in events:
        if event["kind"] == "commit":
            releases[-1].append(event["client"])
        full = per_release is not None and len(releases[-1]) == per_release
        if event["kind"] == "round" or full:
            releases.append([])
    # The last round or buffer is incomplete and not released.
    return releases[:-1]


def count_tasks(events: Iterable[Mapping[str, Any]]) -> int:
    """Return the largest number of tasks of a client in a log."""
    tasks = Counter(event["client"] for event in events if event["kind"] == "dispatch")
    return max(tasks.values(), default=0)
