"""The table of faults: rows are kept, only missing runs are executed, and the totals are the sums of the rows."""

from pathlib import Path

import pytest
from refusals import refuses

from benchmarks.system import chaos_matrix, chaos_table, fault_counts, faults, link_faults
from benchmarks.system.faults import FAULTS, Engine, Row, main
from benchmarks.system.rows import add_row, read_rows

FAULT = next(iter(FAULTS))


def make_row(fault: str = FAULT, engine: str = "plain", number: int = 0, **fields: object) -> Row:
    values: dict[str, object] = {"ended": True, "equal": True, "lost": 0, "doubled": 0, "faults": 0, "commands": 1}
    return Row(fault, engine, number, **values | {"seconds": 1.5} | fields)  # type: ignore[arg-type]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    out = tmp_path / "faults.csv"
    rows = [make_row(), make_row(number=1, ended=False, equal=False, last_line="a, b"), make_row(engine="shards")]
    for row in rows:
        add_row(out, row)
    assert read_rows(out, Row) == rows


def test_damaged_row_is_refused_with_the_file_and_the_line(tmp_path: Path) -> None:
    out = tmp_path / "faults.csv"
    for number in (0, 1):
        add_row(out, make_row(number=number))
    out.write_text(out.read_text().replace("1.5", "x", 2).replace("x", "1.5", 1))
    with refuses(f"{out} line 3: seconds", got="x"):
        read_rows(out, Row)


def test_only_missing_runs_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "faults.csv"
    add_row(out, make_row(number=0, lost=3, commands=4))
    made: list[tuple[str, int]] = []

    def make_run(fault: str, engine: Engine, number: int, undisturbed: Path) -> Row:
        made.append((engine, number))
        return make_row(fault, engine, number, lost=2)

    monkeypatch.setattr(faults, "make_undisturbed_run", lambda folder, updates: folder)
    monkeypatch.setattr(faults, "make_run", make_run)
    main(runs=2, faults=(FAULT,), engines=("plain", "shards"), out=out)
    assert made == [("shards", 0), ("plain", 1), ("shards", 1)]
    plain = next(line for line in capsys.readouterr().out.splitlines() if "plain" in line and "│" in line)
    # Two runs, two equal, five lost tasks, none doubled, three commands to continue, at most 1.5 s.
    assert [text.strip() for text in plain.strip("│").split("│")][2:] == ["2", "2", "5", "0", "3", "1.5"]


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    with refuses("faults", got="earthquake"):
        main(faults=("earthquake",), out=tmp_path / "faults.csv")


def test_counts_cover_all_tables_and_every_wrong_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (faults, chaos_matrix, link_faults, chaos_table):
        monkeypatch.setattr(module, "RESULTS", tmp_path / f"{module.__name__}.csv")
    for row in (make_row(), make_row(number=1, equal=False, lost=2, doubled=1)):
        add_row(faults.RESULTS, row)
    chaos_table.put_row("server kills", "fedavg", chaos_table.Tally(3, 3), 1.0)
    chaos_table.put_row("server kills", "fed-raa", chaos_table.Tally(3, 1, lost=4), 1.0)
    counts = [
        (count.command, count.trials, count.wrong, count.lost, count.doubled)
        for count in fault_counts.count_trials()
        if count.trials
    ]
    assert counts == [("faults", 2, 1, 2, 1), ("system.chaos", 6, 2, 4, 0)]
