"""The race from tuning to its page, its continuation after an interruption, and the overview of all settings."""

import gzip
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from race_runs import A, runs_of, table_lines
from refusals import refuses
from scipy import stats

from benchmarks.studies.commands import run_study
from benchmarks.studies.options import RunOptions
from benchmarks.studies.race.entrants import LIMIT, OURS, ROUNDS
from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.overview import format_overview
from benchmarks.studies.race.record import read_record, write_record
from benchmarks.studies.race.settings import QUICK, SETTINGS


def test_tiny_race_tunes_writes_its_page_and_continues_without_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {**QUICK.fields, "clients": 2, "hidden": (4,)}
    tiny = replace(QUICK, fields=fields, targets=(0.1, 0.15, 0.2), horizon=0.6, trials=2)
    monkeypatch.setattr("benchmarks.studies.race.command.QUICK", tiny)
    asked: dict[str, Any] = {"quick": True, "methods": (OURS, ROUNDS), "seeds": (0,), "out": tmp_path, "jobs": 1}
    run_study("race", RunOptions(**asked))
    page = (tmp_path / "race_digits.md").read_text()
    assert "| fed-quilt |" in page
    assert (tmp_path / "race_digits.png").stat().st_size > 10_000
    assert {"tuned", "untuned"} <= set(pd.read_csv(tmp_path / "race_digits.csv", comment="#")["part"])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "race").rglob("summary.json")}
    assert before
    capsys.readouterr()
    run_study("race", RunOptions(**asked))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "race").rglob("summary.json")} == before
    assert "to go" not in capsys.readouterr().out
    assert (tmp_path / "race_digits.md").read_text() == page
    # With the file of tuned values, the same runs need no trial.
    again = tmp_path / "again"
    run_study("race", RunOptions(**asked | {"out": again, "tuned": tmp_path / "race_digits.toml"}))
    assert (again / "race_digits.csv").read_text() == (tmp_path / "race_digits.csv").read_text()
    assert not list(again.rglob("tuning"))
    # If `extend` is this folder, the runs are read from its files and not repeated.
    page_of_one, wider = tmp_path / "one", tmp_path / "wider"
    run_study(
        "race", RunOptions(**asked | {"methods": (OURS,), "parts": ("tuned",), "out": page_of_one, "extend": tmp_path})
    )
    assert not list(page_of_one.rglob("summary.json"))
    assert record(page_of_one) == record(tmp_path)
    (page_of_one / "race_digits.runs.jsonl.gz").write_bytes(gzip.compress(first_run(record(tmp_path)), mtime=0))
    # The first record is FedAvg's tuned run, so the untuned runs of both methods are missing.
    run_study("race", RunOptions(**asked | {"parts": ("untuned",), "out": wider, "extend": page_of_one}))
    assert len(list(wider.rglob("summary.json"))) == 2
    for part in ("tuned", "untuned"):
        assert table_lines(wider, part) == table_lines(tmp_path, part)
    # With more seeds only the missing runs are executed. A run is not omitted from the page without a message.
    more_seeds = {"parts": ("tuned", "untuned"), "seeds": (0, 1), "out": page_of_one, "extend": wider}
    run_study("race", RunOptions(**asked | more_seeds))
    assert len(list(page_of_one.rglob("summary.json"))) == 3
    with refuses("seeds", "digits", "1", got=(0,)):
        run_study("race", RunOptions(**asked | {"out": tmp_path / "no", "extend": page_of_one}))
    line = json.loads(first_run(record(wider)))
    one = {name: values[:1] for name, values in line["evaluations"].items()}
    damaged = tmp_path / "wrong.gz"
    for wrong in (
        *({"evaluations": one | {"accuracy": [5.0]}}, {"evaluations": one | {"accuracy": [0.5], "t": [0.0]}}),
        *({"evaluations": one | {"bytes": [-1.0]}}, {"evaluations": one | {"t": [math.inf]}}),
        {"evaluations": {name: values[::-1] for name, values in line["evaluations"].items()}},
        *({"commit": "a\nb"}, {"seed": 0.5}, {"client_worst": -5}, {"client_worst": math.nan}),
    ):
        damaged.write_bytes(gzip.compress(json.dumps(line | wrong).encode()))
        with refuses(f"{damaged} line 1"):
            read_record(damaged, tiny.targets)
    damaged.write_bytes(gzip.compress(2 * first_run(record(wider))))
    with refuses(f"{damaged} line 2"):
        read_record(damaged, tiny.targets)
    toml = wider / "race_digits.toml"
    (tmp_path / "no.toml").write_text(re.sub(r"server_lr = .*", "server_lr = -1.5", toml.read_text()))
    with refuses("tuned", "fedavg", "digits", "-1.5"):
        run_study("race", RunOptions(**asked | {"out": tmp_path / "no", "tuned": tmp_path / "no.toml"}))
    more = {"methods": (OURS,), "parts": ("tuned",), "seeds": (0, 1), "out": tmp_path / "no", "extend": tmp_path}
    with refuses("seeds", "digits", ROUNDS, got=(0, 1)):
        run_study("race", RunOptions(**asked | more))
    toml.write_text(re.sub(r"lr = 0\.\d+", "lr = 0.123", toml.read_text()))
    with refuses("extend", "tuned", "fedavg", "digits"):
        run_study("race", RunOptions(**asked | {"methods": (OURS,), "out": tmp_path / "no", "extend": wider}))
    assert not (tmp_path / "no").exists()
    # The variants with the suffix `-lent` are added. The file of tuned values does not have them.
    run_study("race", RunOptions(**asked | {"methods": ("fedbuff-lent",), "parts": ("tuned",)}))
    page = (tmp_path / "race_digits.md").read_text()
    assert "| fedbuff-lent | 1 |" in page
    assert "`python -m benchmarks run race --quick`, and with `--methods fedbuff-lent`, commit" in page
    assert "`--clip 2 --polyak-fraction 0.1 --override local.logit_calibration=0.8`." in page
    assert "lent" not in (tmp_path / "race_digits.toml").read_text()
    run_study("race", RunOptions(**asked | {"parts": ("tuned",), "out": tmp_path / "lent", "extend": tmp_path}))
    assert "| fedbuff-lent | 1 |" in (tmp_path / "lent" / "race_digits.md").read_text()
    assert not list((tmp_path / "lent").rglob("summary.json"))
    (config,) = tmp_path.glob("race/digits/tuned/fedbuff-lent-*/config.json")
    assert json.loads(config.read_text())["method"]["local"]["clip"] == 2.0


def record(folder: Path) -> bytes:
    return gzip.decompress((folder / "race_digits.runs.jsonl.gz").read_bytes())


def first_run(lines: bytes) -> bytes:
    return lines.splitlines(keepends=True)[0]


def test_committed_overview_agrees_with_the_results() -> None:
    assert Path("benchmarks/results/race.md").read_text() == format_overview(Path("benchmarks/results"))


def overview_cells(folder: Path, runs: list[Measured]) -> list[str]:
    """Write the record of A, and return the cells of its line after the title."""
    write_record(folder / "race_A.runs.jsonl.gz", runs)
    (line,) = [line for line in format_overview(folder).splitlines() if line.startswith("| [")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_overview_compares_fed_quilt_defaults_with_the_best_other_tuned_method(tmp_path: Path) -> None:
    ours = runs_of(OURS, 0.5, 0.4, part="untuned")
    others = [
        *runs_of("ist", 1.1, 0.9),
        *runs_of("ace", 1.9, 2.1),
        *runs_of(ROUNDS, 0.2, math.inf),
        *runs_of(LIMIT, 0.1, 0.1),
    ]
    cells = overview_cells(tmp_path, [*ours, *others, *runs_of(OURS, 0.1, 0.1)])
    assert cells[:3] == ["97.5 %", "1.000 ist", "0.450"]
    # The ratios of the seeds are 2.2 and 2.25.
    middle = math.sqrt(2.2 * 2.25)
    factor = math.exp(stats.t.ppf(0.975, 1) * abs(math.log(2.25 / 2.2)) / 2)
    assert cells[3] == f"{middle:.2f} [{middle / factor:.2f}, {middle * factor:.2f}]"
    assert cells[4:] == ["–", OURS]
    assert "In 1 of 1 setting " in format_overview(tmp_path)


@pytest.mark.parametrize(
    ("ours", "other", "ratio", "faster"),
    [
        ((math.inf, math.inf), (0.5, 0.5), "< 0.20", "ist"),
        ((0.5, 0.5), (math.inf, math.inf), "> 5.00", OURS),
        ((0.5, 0.6), (0.6, 0.5), "1.00", "within the noise"),
        ((0.5, math.inf), (math.inf, 0.5), "unknown", "within the noise"),
        ((0.5, 0.5, 0.5, 0.5, math.inf), (1.5, 1.5, 1.5, 1.5, 2.4), "< 2.39", "within the noise"),
    ],
)
def test_overview_shows_bounds_and_losses(
    tmp_path: Path, ours: tuple[float, ...], other: tuple[float, ...], ratio: str, faster: str
) -> None:
    cells = overview_cells(tmp_path, [*runs_of(OURS, *ours, part="untuned"), *runs_of("ist", *other)])
    assert cells[3].startswith(ratio)
    assert cells[5] == faster
    assert (f"- {A.title}: ist" in format_overview(tmp_path)) == (faster == "ist")


def test_overview_corrects_for_the_number_of_settings(tmp_path: Path) -> None:
    """Two log ratios of 0.75 and 0.85 have t = 16 with one degree of freedom, so p = 2 / pi * atan(1 / 16) = 0.04."""
    runs = [*runs_of(OURS, 0.5, 0.4, part="untuned"), *runs_of("ist", 0.5 * math.exp(0.75), 0.4 * math.exp(0.85))]
    write_record(tmp_path / "race_A.runs.jsonl.gz", runs)
    assert f"{OURS} is significantly faster in 1 setting," in format_overview(tmp_path)
    write_record(tmp_path / "race_C.runs.jsonl.gz", runs)
    page = format_overview(tmp_path)
    assert f"{OURS} is significantly faster in 0 settings, and slower in 0" in page
    assert [line for line in page.splitlines() if line.startswith("- ")] == [
        f"- {SETTINGS[name].title}: ist, ratio 2.23 [1.18, 4.20]" for name in ("A", "C")
    ]


def test_overview_chooses_the_best_other_method_by_common_seeds(tmp_path: Path) -> None:
    """IST is the best with the seeds 0 and 1, and misses the target with its third seed, which ACE does not have."""
    others = [*runs_of("ist", 1.0, 1.0, math.inf), *runs_of("ace", 1.5, 1.5)]
    cells = overview_cells(tmp_path, [*runs_of(OURS, 0.5, 0.5, 0.5, part="untuned"), *others])
    assert cells[1] == "2 of 3 ist"
    assert cells[3].startswith(f"> {math.exp((2 * math.log(2) + math.log(5)) / 3):.2f}")


def test_overview_has_the_accuracies_of_long_runs(tmp_path: Path) -> None:
    runs = [*runs_of(OURS, 0.5, 0.4, part="untuned"), *runs_of("ist", 1.1, 0.9), *runs_of(ROUNDS, 1.9, 2.0)]
    long = [*runs_of(ROUNDS, 1.9, 2.0, part="long"), *runs_of(OURS, 0.9, 0.9, part="long")]
    assert overview_cells(tmp_path, [*runs, *long])[4] == "–"
    long += runs_of(OURS, 0.8, 0.8, part="long-untuned")
    assert overview_cells(tmp_path, [*runs, *long])[4] == "97.50 % at 2.5, fedavg 97.50 % at 2.5"
    assert "measured in 1 setting. In 1 of them" in format_overview(tmp_path)
    long += runs_of("ist-lent", 0.9, 0.9, part="long")
    low = [run for run in long if run.entrant != OURS] + runs_of(OURS, math.inf, math.inf, part="long-untuned")
    assert overview_cells(tmp_path, [*runs, *low])[4] == "10.00 % at 2.5, fedavg 97.50 % at 2.5"
    page = format_overview(tmp_path)
    assert "measured in 1 setting. In 0 of them" in page
    assert page.endswith(f"lower in:\n\n- {A.title}: 10.00 % at 2.5, fedavg 97.50 % at 2.5\n")
