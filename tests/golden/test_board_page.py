"""The board in a real browser: it follows growing logs, reacts to the pointer, fits its width, and has a dark theme."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from devtools import BROWSER, Chromium

from fedraa.board.board import Board
from fedraa.board.server import BoardServer
from fedraa.report.theme import DARK, LIGHT, Theme

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH"),
    # A browser takes seconds to start.
    pytest.mark.xdist_group("browser"),
]

DRAWN = """['curve0', 'curve1'].every((id) => document.querySelector(`#${id} .scatterlayer .trace path`))
  && document.querySelectorAll('#timeline .point').length > 0"""
LIST = "document.getElementById('runs').textContent"
TITLES = "[...document.querySelectorAll('.g-xtitle text, .g-ytitle text')].map((text) => text.textContent)"
REQUESTED_CURVES = "performance.getEntriesByType('resource').filter((entry) => /curves.*from=/.test(entry.name)).length"
STAR = """(() => {
  const box = document.querySelector('#curve0 .trace:last-child .point').getBoundingClientRect();
  return [box.left + 6, box.top + 6];
})()"""
# This script returns pairs of labels of one plot that overlap.
OVERLAPS = """(() => {
  const found = [];
  const lie = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  for (const plot of document.querySelectorAll(".plot")) {
    const labels = [...plot.querySelectorAll(".main-svg text")].filter((text) => !text.closest(".hoverlayer"))
      .map((text) => [text.textContent, text.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
    labels.forEach(([one, a], i) => labels.slice(i + 1).forEach(([other, b]) => {
      if (lie(a, b)) found.push([plot.id, one, other]);
    }));
  }
  return found;
})()"""


@pytest.fixture
def folder(sample_runs: Path, tmp_path: Path) -> Path:
    """Return a folder with three runs: one has ended, and two were interrupted. One of these two has rounds."""
    for run in sample_runs.iterdir():
        shutil.copytree(run, tmp_path / "runs" / run.name)
    return tmp_path / "runs"


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    board = Board(folder)
    server = BoardServer(board, 0)
    board.start()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.address
    board.stop()
    server.shutdown()
    thread.join()
    server.server_close()


def rgb_of(theme: Theme) -> str:
    """Return the background colour in the form that browsers report."""
    return f"rgb({', '.join(str(int(theme.paper[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.parametrize(("width", "theme"), [(1280, LIGHT), (400, DARK)])
def test_page_fits_its_width_and_theme_without_overlapping_labels(
    chromium: Chromium, address: str, width: int, theme: Theme
) -> None:
    chromium.problems.clear()
    chromium.open(f"{address}?{width}#fed-raa-ended", width, 900, theme.name)
    chromium.wait(DRAWN)
    chromium.wait("document.querySelectorAll('#compare tbody tr').length === 1")
    chromium.wait("document.getElementById('command').textContent", lambda found: found.startswith("fedraa run "))
    rgb = rgb_of(theme)
    assert chromium.value("getComputedStyle(document.body).backgroundColor") == rgb
    assert chromium.wait("document.querySelector('#curve0 .main-svg')?.style.background") == rgb
    assert chromium.value("document.documentElement.scrollWidth") <= width
    assert chromium.wait(OVERLAPS, lambda found: found == []) == []
    assert {"virtual time (time units)", "test accuracy (share)", "test loss (nats)"} <= set(chromium.value(TITLES))
    chromium.wait(TITLES, lambda found: {"client", "commits"} <= set(found))
    best = chromium.value("document.getElementById('best0').textContent")
    assert best.startswith("★ best: fed-raa-ended, accuracy 0.")
    assert chromium.value("document.querySelectorAll('#runs li').length") == 3
    # The rest of the test changes runs while the page shows them.
    other = DARK if theme is LIGHT else LIGHT
    chromium.look(width, 900, other.name)
    chromium.wait("document.querySelector('#curve0 .main-svg')?.style.background", lambda found: found == rgb_of(other))
    assert chromium.problems == []


def test_page_follows_growing_logs_and_changed_runs(chromium: Chromium, folder: Path, address: str) -> None:
    log, table = folder / "fed-raa-ended" / "events.jsonl", folder / "fed-raa-ended" / "evals.csv"
    events, evals = log.read_text().splitlines(keepends=True), table.read_text().splitlines(keepends=True)
    shutil.rmtree(folder / "fed-raa-ended" / "checkpoints")
    (folder / "fed-raa-ended" / "summary.json").rename(folder / "later")
    log.write_text("".join(events[:20]))
    table.write_text("".join(evals[:3]))
    chromium.problems.clear()
    chromium.open(f"{address}?follow#fed-raa-ended&scaffold-stopped")
    points = "document.getElementById('curve0')?.data?.find((trace) => trace.name === 'fed-raa-ended')?.x.length"
    chromium.wait(points, lambda found: found == 2)
    chromium.wait("document.querySelectorAll('#timeline .point').length")
    bars = chromium.value("document.querySelectorAll('#timeline .point').length")
    with log.open("a") as stream:
        # The last line is incomplete.
        stream.write("".join(events[20:])[:-30])
    with table.open("a") as stream:
        stream.write("".join(evals[3:]))
    chromium.wait(points, lambda found: found == len(evals) - 1)
    chromium.wait("document.querySelectorAll('#timeline .point').length", lambda found: found > bars)
    assert "interrupted" in chromium.value(LIST)
    with log.open("a") as stream:
        stream.write(events[-1][-30:])
    (folder / "later").rename(folder / "fed-raa-ended" / "summary.json")
    chromium.wait("document.getElementById('facts').textContent", lambda found: "ended by steps" in found)
    # A run is added, a run is removed, and a folder that is not a run is added.
    shutil.copytree(folder / "fed-raa-ended", folder / "again")
    shutil.rmtree(folder / "fed-raa-stopped")
    (folder / "bert").mkdir()
    (folder / "bert" / "config.json").write_text('{"model_type": "bert"}')
    names = "[...document.querySelectorAll('#runs .name')].map((name) => name.textContent).sort()"
    chromium.wait(names, lambda found: found == ["again", "bert", "fed-raa-ended", "scaffold-stopped"])
    assert re.search(r"\bbert .* events\.jsonl", chromium.value(LIST))
    assert chromium.problems == []


def test_best_run_is_marked_only_among_runs_with_the_same_data(chromium: Chromium, folder: Path, address: str) -> None:
    for name in ("again", "other"):
        shutil.copytree(folder / "fed-raa-ended", folder / name)
    config = folder / "other" / "config.json"
    config.write_text(config.read_text().replace('"dataset": "digits"', '"dataset": "mnist"'))
    captions = "['best0', 'best1'].map((id) => document.getElementById(id).textContent)"
    marked = """[...document.querySelectorAll('#compare tbody tr')].filter((row) => row.querySelector('.best'))
      .map((row) => row.querySelector('.run').textContent)"""
    chromium.problems.clear()
    chromium.open(f"{address}?problems#fed-raa-ended&again&other")
    chromium.wait(DRAWN)
    chromium.wait("document.querySelectorAll('#compare tbody tr').length === 3")
    assert chromium.wait(marked, lambda found: len(found) > 1) == ["fed-raa-ended", "again"]
    chromium.wait(captions, lambda found: all(text.startswith("No best run") for text in found))
    chromium.value(
        "document.querySelectorAll('#runs li input')[[...document.querySelectorAll('#runs .name')]"
        ".findIndex((name) => name.textContent === 'other')].click()"
    )
    chromium.wait(captions, lambda found: all(text.startswith("★") for text in found))
    assert chromium.problems == []


def test_page_reacts_to_the_pointer(chromium: Chromium, address: str) -> None:
    chromium.problems.clear()
    chromium.open(f"{address}?pointer#fed-raa-ended&scaffold-stopped")
    chromium.wait(DRAWN)
    where = chromium.value(
        "(() => { const box = document.querySelector('#curve0 .nsewdrag').getBoundingClientRect();"
        " return [box.left, box.top, box.width, box.height]; })()"
    )
    left, top, width, height = where
    for share in (0.3, 0.5, 0.97, 0.99):
        chromium.mouse("mouseMoved", left + share * width, top + height * (1 - share))
    chromium.mouse("mouseMoved", *chromium.value(STAR))
    shown = "document.querySelector('#curve0 .hovertext')?.textContent ?? ''"
    chromium.wait(shown, lambda text: text.startswith("fed-raa-ended, the bestaccuracy 0."))
    chromium.mouse("mousePressed", left + 0.2 * width, top + 0.2 * height, 1)
    for share in (0.3, 0.45, 0.6):
        chromium.mouse("mouseMoved", left + share * width, top + share * height, 1)
    chromium.mouse("mouseReleased", left + 0.6 * width, top + 0.6 * height)
    low, high = chromium.wait("document.getElementById('curve0').layout.xaxis.range", lambda found: found[0] > 0)
    assert low < high
    chromium.wait(REQUESTED_CURVES)
    chromium.value("document.querySelector('#across input[value=bytes]').click()")
    chromium.wait(TITLES, lambda found: "sent, down and up (bytes)" in found)
    chromium.value("document.getElementById('none').click()")
    chromium.wait("!document.getElementById('empty').hidden && location.href.endsWith('#')")
    chromium.value("document.querySelector('#runs input').click()")
    chromium.wait("document.getElementById('legend').textContent")
    assert chromium.problems == []
