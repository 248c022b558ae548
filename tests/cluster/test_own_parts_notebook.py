"""Components that are defined in the cells of a notebook: both engines, a callback, Ctrl-C and resume."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.cluster

CELLS = [
    """
import os, signal
import numpy as np
import fedraa as fl

class LowestLoss(fl.Scheduler):
    def __init__(self, every):
        self.every, self.tasks = every, 0

    def choose(self, view, rng):
        self.tasks += 1
        by_chance = self.tasks % self.every == 0
        return rng.choice(view.feasible) if by_chance else min(view.feasible, key=view.losses.__getitem__)

def gentle(staleness):
    return 4 / (4 + staleness)

def sure(outputs, labels):
    return outputs.softmax(1).max(1).values

def by_parity(labels, clients, rng):
    return np.array_split(np.argsort(labels % 2, kind="stable"), clients)
""",
    """
class Seen(fl.Callback):
    def on_start(self, run):
        self.evals = []

    def on_eval(self, step, t, metrics):
        self.evals.append((step, metrics["sure"]))

class CtrlC(fl.Callback):
    def on_start(self, run):
        self.commits = 0

    def on_commit(self, event):
        self.commits += 1
        if self.commits == 60:
            os.kill(os.getpid(), signal.SIGINT)

parts = dict(scheduler=LowestLoss(every=4), staleness=gentle, metrics=(sure,), partition=by_parity)
mine = fl.Experiment(**parts, clients=4, hidden=(8,), local_steps=2, updates=120, checkpoint_every=20, quiet=True)
""",
    """
here, there = Seen(), Seen()
local = fl.run(mine, engine="local", out="local", callbacks=[here])
ray = fl.run(mine, workers=2, out="ray", callbacks=[there])
assert local.summary["model_sha256"] == ray.summary["model_sha256"]
assert len(here.evals) > 20 and here.evals == there.evals
""",
    """
for out, engine in (("stopped", {"engine": "local"}), ("stopped-ray", {"workers": 2})):
    try:
        fl.run(mine, **engine, out=out, callbacks=[CtrlC()])
    except KeyboardInterrupt as stopped:
        assert f"resume with: fedraa.resume({out!r}, " in str(stopped) and "scheduler=...," in str(stopped)
    else:
        raise AssertionError("it was not stopped")
    seen = Seen()
    resumed = fl.resume(out, **parts, callbacks=[seen])
    assert resumed.summary["model_sha256"] == local.summary["model_sha256"]
    assert seen.evals == here.evals
    assert "consistent" in fl.replay(out)
""",
    """
local
""",
]


@pytest.mark.slow
def test_notebook_components_give_the_same_run_on_both_engines_and_resume(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()  # raises what a cell raises
    (shown,) = notebook.cells[-1].outputs
    assert "local" in shown["data"]["text/plain"]
