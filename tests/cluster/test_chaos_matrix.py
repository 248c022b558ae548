"""Runs under several simultaneous kinds of faults end with the bits and the log of the undisturbed run."""

from pathlib import Path

import pytest

from benchmarks.system import chaos_matrix
from benchmarks.system.chaos_kills import make_experiment
from benchmarks.system.chaos_matrix import CELLS, MESSAGES, ROUNDS, Row, main, make_run
from benchmarks.system.rows import read_rows
from benchmarks.system.warm_workers import WorkerPool
from fedraa.api import run

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# Together these mixtures have each kind of fault except lost messages, which need a separate cluster.
MIXTURES = [("fedavg", "kill+torn+disk"), ("fed-raa", "kill+hang+freeze")]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("method", "cell"), MIXTURES)
def test_a_mixture_of_faults_changes_no_bit(
    method: str, cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_matrix, "HUNG_AFTER_S", 2.0)
    undisturbed = run(make_experiment(method, tmp_path / "undisturbed", "local", ROUNDS)).directory
    row = make_run(WorkerPool(spares=0), tmp_path, undisturbed, method, cell, 0)
    assert (row.equal, row.lost, row.doubled) == (True, 0, 0)
    assert row.resumed == 2 * ("torn" in cell)
    # The mixture with `torn` cuts the log, which may lose lines about faults. Only the other mixture is counted.
    assert row.faults >= 3 * ("hang" in cell)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if MESSAGES in cell])
def test_lost_messages_and_other_faults_change_no_bit(cell: str, tmp_path: Path) -> None:
    main(runs=1, methods=("fed-raa",), cells=(cell,), out=tmp_path / "rows.csv")
    [row] = read_rows(tmp_path / "rows.csv", Row)
    assert (row.equal, row.lost, row.doubled) == (True, 0, 0)
