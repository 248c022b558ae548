"""The report in a real browser: every plot loads, the tables sort, no script fails, and nothing is cut off."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from fedraa.api import run
from fedraa.config.experiment import Experiment
from fedraa.report import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH"),
    # The page of these tests takes seconds to write.
    pytest.mark.xdist_group("browser"),
]

BEFORE = "<script>window.errors = []; window.onerror = (text) => { errors.push(String(text)); };</script>"
# This script writes its results into the page after it has loaded. `--dump-dom` prints them.
AFTER = """<script>window.addEventListener("load", () => {
  const table = document.querySelector("table.numbers");
  const column = (i) => [...table.tBodies[0].rows].map((row) => Number(row.cells[i].dataset.value));
  const accuracy = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === "accuracy");
  const click = () => { table.querySelectorAll("th button")[accuracy].click(); return column(accuracy); };
  const images = [...document.images];
  const seen = {
    figures: images.length,
    missing: images.filter((image) => !image.complete || image.naturalWidth === 0).map((image) => image.alt),
    up: click(),
    down: click(),
    width: document.documentElement.scrollWidth,
    window: window.innerWidth,
    hidden: [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth).length,
    errors,
  };
  const report = document.createElement("pre");
  report.id = "seen";
  report.textContent = JSON.stringify(seen);
  document.body.append(report);
});</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    flags = {"engine": "local", "clients": 6, "hidden": (8,), "local_steps": 1, "time": 0.5}
    for method in ("fed-raa", "ist"):
        run(Experiment(method=method, out=folder / method, **flags))
    report([folder / "fed-raa", folder / "ist"], folder / "page.html", landscape=True)
    return folder / "page.html"


def look(page: Path, width: int, tmp_path: Path) -> dict[str, object]:
    """Return the results of the script in a browser of `width` pixels.

    The page is in a frame, because windows have a minimum width.
    """
    watched = page.read_text().replace("<head>", "<head>" + BEFORE).replace("</body>", AFTER + "</body>")
    (tmp_path / "page.html").write_text(watched)
    (tmp_path / "frame.html").write_text(
        f'<iframe src="page.html" style="width:{width}px;height:800px;border:0" onload="setTimeout(() => {{'
        "document.body.append(frames[0].document.getElementById('seen')) }, 100)\"></iframe>"
    )
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    arguments += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width + 100},900"]
    arguments += ["--virtual-time-budget=10000", "--dump-dom", (tmp_path / "frame.html").as_uri()]
    dom = subprocess.run([str(BROWSER), *arguments], capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[:500]
    return dict(json.loads(unescape(found[1])))


@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_is_whole_in_a_browser(page: Path, width: int, tmp_path: Path) -> None:
    seen = look(page, width, tmp_path)
    assert seen["errors"] == []
    assert seen["missing"] == []
    # These are the plots of the comparison, the staleness of fed-raa, the coverage of ist, and the other plots of both
    # methods.
    assert seen["figures"] == 4 + 8 + 8
    # JSON has no types.
    assert seen["up"] == sorted(seen["up"])  # type: ignore[call-overload]
    assert seen["down"] == seen["up"][::-1] != seen["up"]  # type: ignore[index]
    assert seen["window"] == width
    assert seen["width"] <= width, "the page scrolls sideways"
    assert seen["hidden"] == 0, "a table is cut"
