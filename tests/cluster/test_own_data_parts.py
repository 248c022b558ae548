"""Components, fleet and model of a script and of modules beside it: the same run in one process and on Ray."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from equal_runs import lines
from refusals import refuses
from torch import Tensor

import fedraa as fl
from fedraa.cli.main import main
from fedraa.replay.replay import replay
from fedraa.rundir.history import History

pytestmark = pytest.mark.cluster

COMPONENTS = Path(__file__).parents[1] / "fixtures" / "own_parts" / "my_ext.py"
LAYERS = "from torch import nn\n\nclass Wide(nn.Linear):\n    pass\n"
SCRIPT = """
import sys
from pathlib import Path
import numpy as np, torch
import fedraa as fl
from my_ext import ByParity, LowestLoss, Top, gentle
from own_layers_8 import Wide

def sure(outputs, labels):
    return outputs.softmax(1).max(1).values

def devices(clients, rng):
    return {"compute": rng.uniform(1, 3, clients), "latency": np.full(clients, 0.01)}

def net(classes):
    return torch.nn.Sequential(
        torch.nn.Flatten(), Wide(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, classes)
    )

if __name__ == "__main__":
    out = Path(sys.argv[1])
    for name, engine in {"local": {"engine": "local"}, "ray": {"workers": 1}}.items():
        fl.run(fl.Experiment(
            partition=ByParity(), metrics=(Top(3), sure), compute=devices, model=net,
            scheduler=LowestLoss(4), staleness=gentle,
            clients=4, fragments=2, updates=24, quiet=True, out=out / name, **engine,
        ))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("script")
    script = folder / "own.py"
    script.write_text(SCRIPT)
    (folder / "own_layers_8.py").write_text(LAYERS)
    shutil.copy(COMPONENTS, folder / "my_ext.py")
    where = {"PYTHONPATH": str(Path(fl.__file__).parents[1])}
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, env=os.environ | where)
    assert done.returncode == 0, done.stderr
    return folder


def test_custom_components_of_a_script_give_the_same_run_on_both_engines(runs: Path) -> None:
    histories = {name: History(runs / name) for name in ("local", "ray")}
    first = histories["local"]
    assert list(first.evals.columns[-2:]) == ["top", "sure"]
    logs = []
    for history in histories.values():
        assert history.summary["model_sha256"] == first.summary["model_sha256"]
        assert history.summary["metrics"] == first.summary["metrics"]
        logs.append(lines(history.directory))
        assert "consistent" in replay(history.directory)
    assert logs[0] == logs[1]
    experiment = first.config["experiment"]
    assert experiment["partition"] == "my_ext:ByParity"
    assert experiment["scheduler"] == "my_ext:LowestLoss(every=4)"
    assert experiment["staleness"] == "my_ext:gentle"
    assert experiment["metrics"] == ["my_ext:Top(k=3)", "__main__:sure"]
    assert experiment["compute"] == "__main__:devices"


def test_report_needs_no_code_of_custom_components(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(runs / "local"), "--out", str(page), "--theme", "light"]) == 0
    assert "sure" in page.read_text()


def test_error_of_a_metric_that_fails_on_a_worker_names_the_metric(cluster: None, tmp_path: Path) -> None:
    def late(outputs: Tensor, labels: Tensor) -> object:
        """A metric that works for the small batches of the check before the start, and fails for a whole test set."""
        return labels if len(labels) < 100 else 0.5

    experiment = fl.Experiment(clients=2, workers=1, updates=4, metrics=(late,), quiet=True, out=tmp_path / "run")
    with refuses("metrics", "late"):
        fl.run(experiment)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["resolved"]["metrics"] == ["late"]
