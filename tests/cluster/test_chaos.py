"""A short dose of what `make chaos` gives to ten methods."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.system.chaos import Dose, torment

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.mark.parametrize("method", ["fed-raa", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_nothing_is_lost_in_chaos(method: str, tmp_path: Path) -> None:
    dose = Dose(deaths=3, freezes=0, shots_at_workers=1, shots_at_server=1, shots_at_driver=3, tears=1)
    outcome = torment(method, tmp_path, dose, np.random.default_rng(1))
    assert (outcome.lost, outcome.applied_twice) == (0, 0)
    assert outcome.runs == outcome.same_log == outcome.same_bits >= 4
    assert outcome.faults_logged >= 3
