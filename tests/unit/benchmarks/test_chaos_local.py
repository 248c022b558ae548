"""A short version of the trials with killed worker processes of the engine `local`."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.system.chaos_local import disturb_workers


@pytest.mark.linux
def test_runs_survive_kills_and_freezes_of_worker_processes(tmp_path: Path) -> None:
    tally = disturb_workers(tmp_path, np.random.default_rng(2), "fedbuff", kills=3, freezes=1)
    assert tally.well
    assert tally.count >= 2
