"""The head of a joined cluster dies: one sentence appears before Ray's error, and the run resumes elsewhere."""

import os
import signal
from pathlib import Path

import pytest
from nodes import nodes
from running import FIELDS, FLAGS, PATIENCE, until
from same_run import same
from test_real_cluster import commits

from benchmarks.system.processes import list_descendants, process_title
from fedraa.api import resume, run
from fedraa.config.experiment import Experiment

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

UPDATES = 3000


@pytest.mark.linux
@pytest.mark.parametrize("client", [False, True])
def test_dead_head_ends_the_run_with_an_error_and_the_run_resumes_locally(client: bool, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with nodes() as cluster:
        cluster.join("one", {})
        address = f"ray://127.0.0.1:{cluster.client}" if client else cluster.address
        flags = ("--updates", str(UPDATES), "--workers", "1", "--quiet", "--out", str(out), "--address", address)
        driver = cluster.begin("run", *FLAGS, *flags)
        try:
            until(lambda: commits(out) > 60, driver)
            below = list_descendants(cluster.started["head"].pid)
            os.kill(next(pid for pid in below if "/gcs/gcs_server" in process_title(pid)), signal.SIGKILL)
            said, _ = driver.communicate(timeout=PATIENCE)
        finally:
            driver.kill()
    assert driver.returncode == 1, said
    assert said.startswith("fedraa: cluster: ")
    assert address in said
    assert said.endswith(f"fedraa resume {out}\n")
    config = out / "config.json"
    config.write_text(
        config.read_text().replace('"engine": "ray"', '"engine": "local"').replace(f'"{address}"', "null")
    )
    resume(out)
    same(out, run(Experiment(**FIELDS, updates=UPDATES, engine="local", out=tmp_path / "here")))
