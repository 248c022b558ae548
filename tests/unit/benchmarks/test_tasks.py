"""The benchmark of short tasks: its row, and the settings that it refuses."""

from pathlib import Path

from refusals import refuses

from benchmarks.system.tasks import main, measure_overhead


def test_measure_local_row_adds_up() -> None:
    row = measure_overhead("local", 8, 4, 2)
    assert (row["engine"], row["workers"], row["tasks"]) == ("local", "1", "8")
    assert float(row["bare_cpu_ms"]) > 0
    overhead = float(row["task_cpu_ms"]) - float(row["bare_cpu_ms"])
    assert abs(overhead - float(row["overhead_cpu_ms"])) < 0.02


def test_main_no_rounds_is_refused(tmp_path: Path) -> None:
    with refuses("rounds", got=0):
        main(rounds=0, out=tmp_path / "tasks.csv")
