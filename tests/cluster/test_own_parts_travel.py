"""A model from a module beside the user's script trains on a private cluster and on one without the module."""

import subprocess
import sys
from pathlib import Path

import pytest
from nodes import Nodes

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("three nodes")]

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

given = {"engine": "local"} if sys.argv[1] == "local" else {"workers": 1}
if sys.argv[1] not in ("local", "own"):
    given["address"] = sys.argv[1]
experiment = fedraa.Experiment(method="fedavg", clients=2, local_steps=2, rounds=2, out=Path(sys.argv[2]), **given)
torch.manual_seed(0)
print(fedraa.run(experiment, model=Net()).summary["model_sha256"])
"""


def test_the_run_is_that_of_the_local_engine(three: Nodes, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, source in (("own_net_9", NET), ("own_layers_9", LAYERS), ("script", SCRIPT)):
        (folder / f"{name}.py").write_text(source)
    digests = {}
    for where in ("local", "own", three.address):
        done = subprocess.run(
            [sys.executable, str(folder / "script.py"), where, str(tmp_path / f"run-{len(digests)}")],
            env=three.environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        digests[where] = done.stdout.splitlines()[-1]
    assert len(set(digests.values())) == 1
