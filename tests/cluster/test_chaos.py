"""A short version of `make chaos` with fewer methods."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.system.chaos_kills import driver_kills, server_kills, worker_kills

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fed-raa", "scaffold"])
def test_runs_survive_kills_of_workers_server_and_driver(method: str, tmp_path: Path) -> None:
    rng, folders = np.random.default_rng(1), [tmp_path / name for name in ("workers", "server", "driver")]
    for folder in folders:
        folder.mkdir()
    tallies = [
        worker_kills(folders[0], rng, method, deaths=3, shots=1),
        server_kills(folders[1], rng, method, shots=1),
        driver_kills(folders[2], rng, method, shots=3, tears=1),
    ]
    assert all(tally.well for tally in tallies), tallies
    assert sum(tally.count for tally in tallies) >= 9
