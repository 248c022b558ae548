"""A model from a module beside the user's script trains on a private cluster and on one without the module."""

import subprocess
import sys
from pathlib import Path

import pytest
from nodes import Nodes

pytestmark = pytest.mark.cluster

NET = """
from torch import nn
from own_layers_9 import Wide

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Wide(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())
"""
LAYERS = "from torch import nn\n\nclass Wide(nn.Linear):\n    pass\n"
SCRIPT = """
import sys
from pathlib import Path
import fedraa
import torch
from own_net_9 import Net

engines = {"local": {"engine": "local"}, "own": {"workers": 1}, "three": {"workers": 1, "address": sys.argv[1]}}
for name, engine in engines.items():
    torch.manual_seed(0)
    experiment = fedraa.Experiment(method="fedavg", clients=2, local_steps=2, rounds=2, quiet=True, **engine)
    history = fedraa.run(experiment, model=Net(), out=Path(sys.argv[2]) / name)
    print(name, history.summary["model_sha256"])
"""


def test_the_run_is_that_of_the_local_engine(three: Nodes, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, source in (("own_net_9", NET), ("own_layers_9", LAYERS), ("script", SCRIPT)):
        (folder / f"{name}.py").write_text(source)
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), three.address, str(tmp_path)],
        env=three.environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    digests = dict(line.split() for line in done.stdout.splitlines())
    assert digests.keys() == {"local", "own", "three"}
    assert len(set(digests.values())) == 1
