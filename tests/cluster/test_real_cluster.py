"""A cluster that the command line starts: refusals, custom modules, submit, place, watch, stop and resume.

The idle processes of the cluster use CPU time, so that no other tests run at the same time.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from nodes import Nodes, nodes
from ray import _raylet
from running import until
from same_run import same

from actors.cluster.metrics import NAMES
from fedraa.api import run
from fedraa.config.experiment import Experiment
from fedraa.rundir.file_names import EVENTS
from fedraa.rundir.history import History

pytestmark = pytest.mark.cluster

FLAGS = ("--hidden", "8", "--clients", "4", "--local-steps", "2", "--checkpoint-every", "50", "--quiet")


@pytest.fixture(scope="module")
def joined() -> Iterator[Nodes]:
    """Yield a cluster of a head without cores and a node with one core and the resource `server`."""
    with nodes() as cluster:
        cluster.join("one", {"server": 1}, "--metrics-export-port", str(cluster.metrics))
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> History:
    return run_locally(tmp_path_factory.mktemp("undisturbed"), 60)


def run_locally(out: Path, updates: int) -> History:
    flags = {"hidden": (8,), "clients": 4, "local_steps": 2, "checkpoint_every": 50}
    return run(Experiment(**flags, updates=updates, engine="local", out=out))


def commits(directory: Path) -> int:
    log = directory / EVENTS
    return log.read_text().count('"commit"') if log.exists() else 0


def test_submitted_job_prints_its_log_and_its_run_can_be_fetched(
    joined: Nodes, undisturbed: History, tmp_path: Path
) -> None:
    there, out = joined.folder / "job", tmp_path / "fetched"
    flags = [flag for flag in FLAGS if flag != "--quiet"]
    dashboard = f"http://127.0.0.1:{joined.dashboard}"
    job = joined.fedraa(
        "submit", "--address", dashboard, "--", "run", *flags, "--updates", "60", "--workers", "1", "--out", str(there)
    )
    assert job.returncode == 0, job.stderr
    assert "model sha256" in job.stdout
    fetched = joined.fedraa("fetch", str(there), "--address", f"ray://127.0.0.1:{joined.client}", "--out", str(out))
    assert fetched.returncode == 0, fetched.stderr
    same(out, undisturbed)
    assert torch.load(out / "model.pt", weights_only=True)


@pytest.mark.slow
def test_status_metrics_stop_and_resume_work_for_a_run_on_a_cluster(joined: Nodes, tmp_path: Path) -> None:
    out, address = tmp_path / "run", f"ray://127.0.0.1:{joined.client}"
    joined.join("two", {"phone": 1})
    placed = ("--server-node", "server", "--resources", "1:CPU=1,server=1", "1:CPU=1,phone=1")
    driver = joined.begin("run", *FLAGS, "--updates", "4000", "--address", address, *placed, "--out", str(out))
    try:
        until(lambda: commits(out) > 0, driver)
        seen = joined.fedraa("status", "--address", joined.address).stdout
        until(lambda: NAMES["idle"] in scrape(joined), driver)
        measured = scrape(joined)
        assert joined.fedraa("stop", str(out), "--address", joined.address).returncode == 0
        said, _ = driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert str(out) in seen
    assert re.search(r"step \d+/4000 .* [012]/2 busy", seen)
    assert driver.returncode == 130
    assert "with a checkpoint" in said
    assert said.strip().endswith(f": fedraa resume {out}")
    assert [
        name
        for key, name in NAMES.items()
        if key not in ("faults", "dropped", "quarantined") and f"\nray_{name}" not in measured
    ] == []
    assert "interrupted" in joined.fedraa("status", str(out)).stdout
    resumed = joined.fedraa("resume", str(out), "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    same(out, run_locally(tmp_path / "here", 4000))


def scrape(joined: Nodes) -> str:
    with urlopen(f"http://127.0.0.1:{joined.metrics}/metrics") as answer:
        return str(answer.read().decode())


def run_python(code: str, arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


WRONG, NONE = {"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}
COMMANDS = "import sys; from fedraa.cli.main import main; print(*(main(words.split()) for words in sys.argv[1:]))"


@pytest.mark.skipif(not hasattr(_raylet, "AuthenticationTokenLoader"), reason="Ray before 2.52 has no tokens")
@pytest.mark.parametrize("credentials", [WRONG, NONE])
def test_command_with_a_wrong_or_missing_token_is_refused(credentials: dict[str, str], joined: Nodes) -> None:
    host = "127.0.0.1"
    addresses = [f"{host}:{joined.port}", f"http://{host}:{joined.dashboard}"]
    commands = [f"status --address {addresses[0]}", f"submit --address {addresses[1]} methods"]
    if credentials is WRONG:
        addresses.append(f"ray://{host}:{joined.client}")
        commands.append(f"status --address {addresses[2]}")
    answer = run_python(COMMANDS, commands, joined.environment | credentials)
    assert answer.stdout.split() == ["2"] * len(commands), answer.stderr
    for sentence, address in zip(answer.stderr.splitlines(), addresses, strict=True):
        assert sentence.startswith("fedraa: address: ")
        assert address in sentence
        assert "`ray get-auth-token`" in sentence


@pytest.mark.parametrize("client", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_cluster_with_another_version_of_ray_is_refused(client: bool, joined: Nodes) -> None:
    address = f"ray://127.0.0.1:{joined.client}" if client else joined.address
    older = "import sys, ray; ray.__version__ = '2.0.1'; from fedraa.cli.main import main; sys.exit(main(sys.argv[1:]))"
    answer = run_python(older, ["status", "--address", address], joined.environment)
    assert answer.returncode == 2, answer.stderr
    said = answer.stderr.splitlines()[-1]
    assert said.startswith("fedraa: address: ")
    assert address in said
    assert "Ray 2.0.1 and Python" in said


@pytest.mark.slow
def test_error_about_a_node_without_torch_names_torch(joined: Nodes, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    joined.join("bare", {"bare": 2}, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    flags = ("run", *FLAGS, "--updates", "20", "--address", joined.address, "--out", str(tmp_path / "run"))
    server = joined.fedraa(*flags, "--server-node", "bare")
    worker = joined.fedraa(*flags, "--resources", "1:bare=1", "1:bare=1")
    joined.kill("bare")
    assert server.returncode == 2, server.stderr
    said = server.stderr.splitlines()[-1]
    assert said.startswith("fedraa: address: ")
    assert re.search(r"ModuleNotFoundError: .*'torch'", said)
    assert worker.returncode == 1, worker.stderr
    assert re.search(r"^fedraa: workers: .* tier \d.*torch", worker.stderr, re.M)


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

engines = {"local": {"engine": "local"}, "joined": {"workers": 1, "address": sys.argv[1]}}
for name, engine in engines.items():
    torch.manual_seed(0)
    experiment = fedraa.Experiment(method="fedavg", clients=2, local_steps=2, rounds=2, quiet=True, **engine)
    history = fedraa.run(experiment, model=Net(), out=Path(sys.argv[2]) / name)
    print(name, history.summary["model_sha256"])
"""


def test_modules_beside_a_script_are_sent_to_the_cluster(joined: Nodes, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, source in (("own_net_9", NET), ("own_layers_9", LAYERS), ("script", SCRIPT)):
        (folder / f"{name}.py").write_text(source)
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), joined.address, str(tmp_path)],
        env=joined.environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    digests = dict(line.split() for line in done.stdout.splitlines())
    assert digests.keys() == {"local", "joined"}
    assert len(set(digests.values())) == 1
