"""The search for convolutions that overwrite memory."""

import io
import json
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from benchmarks.system import convolution_cases
from benchmarks.system.convolution_cases import Case, all_cases, check_case, run_child
from benchmarks.system.convolutions import as_row, format_page, main, row_key

SETTING = {"cpu": "some CPU", "isa": "AVX2", "torch": "2.13", "onednn": "3.12", "protected": "False"}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"sampled": -1}, "sampled"), ({"out": Path("nowhere/out.csv")}, "out")],
)
def test_main_with_a_bad_argument_is_refused(arguments: dict[str, Any], field: str) -> None:
    with refuses(field):
        main(**arguments)


def test_markdown_separates_values_of_cases_that_failed() -> None:
    rows = [as_row(SETTING, Case(in_channels=n), result) for n, result in ((4, "died"), (12, "wrong"), (16, "ok"))]
    page = format_page([*rows, as_row(SETTING, Case(in_channels=99), "refused")])
    assert "2 of 3 cases failed" in page
    assert "| in channels | 4, 12 | 16 |" in page
    assert len({row_key(row) for row in rows}) == 3


def test_all_cases_differ_and_random_cases_are_reproducible() -> None:
    cases = all_cases(50)
    assert len(set(cases)) == len(cases) > len(all_cases(0))
    assert cases == all_cases(50)


def test_check_case_with_a_kernel_larger_than_the_image_is_refused() -> None:
    assert check_case(Case(kernel=5, sides=(2, 2))) == "refused"


def test_a_case_that_ends_its_process_is_reported_as_died(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(case: Case) -> str:
        if case.in_channels == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return "ok"

    monkeypatch.setattr(convolution_cases, "check_case", check)
    cases = json.dumps([asdict(Case()), asdict(Case(in_channels=16))])
    monkeypatch.setattr("sys.stdin", io.StringIO(cases))
    run_child(protect=False)
    assert capsys.readouterr().out.split() == ["died", "ok"]
