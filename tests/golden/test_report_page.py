"""The report in a real browser: every plot loads, the tables sort, no script fails, and nothing is cut off."""

from pathlib import Path

import pytest
from devtools import BROWSER, Chromium

from fedraa.api import run
from fedraa.config.experiment import Experiment
from fedraa.report import report

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH"),
    # A browser takes seconds to start.
    pytest.mark.xdist_group("browser"),
]

IMAGES = "[...document.images]"
# A click on the head of the column of accuracies sorts the first table. The value is the column.
SORTED = """(() => {
  const table = document.querySelector("table.numbers");
  const accuracy = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === "accuracy");
  table.querySelectorAll("th button")[accuracy].click();
  return [...table.tBodies[0].rows].map((row) => Number(row.cells[accuracy].dataset.value));
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    flags = {"engine": "local", "clients": 6, "hidden": (8,), "local_steps": 1, "time": 0.5}
    for method in ("fed-raa", "ist"):
        run(Experiment(method=method, out=folder / method, **flags))
    report([folder / "fed-raa", folder / "ist"], folder / "page.html")
    return folder / "page.html"


@pytest.mark.parametrize("width", [1200, 400])
def test_page_loads_its_plots_sorts_its_tables_and_fits_its_width(page: Path, width: int, chromium: Chromium) -> None:
    chromium.problems.clear()
    chromium.open(f"{page.as_uri()}?{width}", width)
    chromium.wait(f"document.readyState === 'complete' && {IMAGES}.every((image) => image.complete)")
    assert chromium.value(f"{IMAGES}.filter((image) => image.naturalWidth === 0).map((image) => image.alt)") == []
    # Comparison; fed-raa with its staleness; ist with its coverage.
    assert chromium.value(f"{IMAGES}.length") == 4 + 6 + 6
    up, down = chromium.value(SORTED), chromium.value(SORTED)
    assert up == sorted(up)
    assert down == up[::-1] != up
    assert chromium.value("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    cut = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
    assert chromium.value(cut) == 0, "a table is cut"
    assert chromium.problems == []
