"""Clusters of several nodes, started by the command line: attach, submit, place, watch, stop, lose nodes and resume."""

import re
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from nodes import Nodes
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
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> History:
    return here(tmp_path_factory.mktemp("undisturbed"), 60)


def here(out: Path, updates: int) -> History:
    flags = {"hidden": (8,), "clients": 4, "local_steps": 2, "checkpoint_every": 50}
    return run(Experiment(**flags, updates=updates, engine="local", out=out))


def commits(directory: Path) -> int:
    log = directory / EVENTS
    return log.read_text().count('"commit"') if log.exists() else 0


def test_a_job_streams_its_log_and_leaves_a_run_to_fetch(three: Nodes, undisturbed: History, tmp_path: Path) -> None:
    there, out = three.folder / "job", tmp_path / "fetched"
    flags = [flag for flag in FLAGS if flag != "--quiet"]
    dashboard = f"http://127.0.0.1:{three.dashboard}"
    job = three.fedraa(
        "submit", "--address", dashboard, "--", "run", *flags, "--updates", "60", "--workers", "2", "--out", str(there)
    )
    assert job.returncode == 0, job.stderr
    assert "model sha256" in job.stdout
    fetched = three.fedraa("fetch", str(there), "--address", f"ray://127.0.0.1:{three.client}", "--out", str(out))
    assert fetched.returncode == 0, fetched.stderr
    same(out, undisturbed)
    assert torch.load(out / "model.pt", weights_only=True)


@pytest.mark.slow
def test_a_run_elsewhere_is_seen_measured_stopped_and_gone_on_with(three: Nodes, tmp_path: Path) -> None:
    out, address = tmp_path / "run", f"ray://127.0.0.1:{three.client}"
    placed = ("--server-node", "server", "--resources", "1:CPU=1,server=1", "1:CPU=1,phone=1")
    driver = three.begin("run", *FLAGS, "--updates", "4000", "--address", address, *placed, "--out", str(out))
    try:
        until(lambda: commits(out) > 0, driver)
        seen = three.fedraa("status", "--address", three.address).stdout
        until(lambda: NAMES["idle"] in scrape(three), driver)
        measured = scrape(three)
        assert three.fedraa("stop", str(out), "--address", three.address).returncode == 0
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
    assert "interrupted" in three.fedraa("status", str(out)).stdout
    resumed = three.fedraa("resume", str(out), "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    same(out, here(tmp_path / "here", 4000))


def scrape(three: Nodes) -> str:
    with urlopen(f"http://127.0.0.1:{three.metrics}/metrics") as answer:
        return str(answer.read().decode())
