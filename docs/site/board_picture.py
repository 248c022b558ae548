"""Take the pictures of the board in docs/guides: three runs that have ended, and a run that still trains.

Run `python docs/site/board_picture.py`. It needs Chromium, and takes under a minute.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "golden")]

from devtools import Chromium

import fedraa as fl
from fedraa.board.board import Board
from fedraa.board.server import BoardServer

TO = ROOT / "docs" / "guides"
SIZE = (1280, 1130)
FLEET = {"clients": 10, "partition": "dirichlet", "compute": "1:0.3,4:0.7", "engine": "local"}
LIVE_COMMAND = "run --method fed-quilt --updates 1000 --quiet"
# The live run has this number of evaluations before the picture is taken.
MIN_EVALS = 8
# The page is ready if both plots have curves, the timeline has tasks, and the comparison has rows.
IS_DRAWN = """(() => {
  const count = (what) => document.querySelectorAll(what).length;
  return ["#curve0", "#curve1"].every((id) => count(`${id} .scatterlayer .trace path`) > 3)
    && count("#timeline .point") > 0 && count("#compare tbody tr") > 3;
})()"""


def main() -> None:
    """Run the methods, open the board in Chromium, and write the two pictures."""
    with TemporaryDirectory() as name:
        os.chdir(name)
        folder = Path("runs")
        fl.compare(["fed-raa", "fedasync", "fedavg"], time=3, out=folder / "compare", **FLEET)
        flags = [word for flag, value in FLEET.items() for word in (f"--{flag}", str(value))]
        command = [sys.executable, "-m", "fedraa", *LIVE_COMMAND.split(), *flags, "--out", str(folder / "live")]
        live = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
        while not (evals := folder / "live" / "evals.csv").exists() or evals.read_text().count("\n") < MIN_EVALS:
            time.sleep(0.1)
        board = Board(folder)
        server = BoardServer(board, 0)
        board.start()
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            with Chromium(Path(name) / "profile") as browser:
                for theme, file in (("light", "board.png"), ("dark", "board-dark.png")):
                    browser.open(f"{server.address}?{theme}", *SIZE, theme)
                    browser.wait(IS_DRAWN)
                    browser.picture(TO / file)
        finally:
            live.terminate()
            live.wait()
            board.stop()
            server.shutdown()


if __name__ == "__main__":
    main()
