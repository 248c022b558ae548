"""The noisy sum of a private round, for tests."""

from fedraa.privacy.noisy_sum import NoisySum
from fedraa.privacy.privacy import PRIVACY


def noisy_sum(text: str, size: int = 2, *, cohort: float = 4, whole: bool = True, seed: int = 0) -> NoisySum:
    return NoisySum(PRIVACY.resolve(text), size, cohort=cohort, whole=whole, seed=seed)
