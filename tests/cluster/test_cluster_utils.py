"""A test cluster of three nodes: one node is lost, one joins, and the bits are the same as without a cluster."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from running import PATIENCE, until
from same_run import same
from test_real_cluster import FLAGS, commits, run_locally

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

UPDATES = 1500


@pytest.fixture
def three_nodes() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def test_run_with_a_lost_and_a_new_node_equals_the_run_without_a_cluster(three_nodes: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "run"
    lost, _ = three_nodes.add_node(num_cpus=1), three_nodes.add_node(num_cpus=1)
    flags = ["--updates", str(UPDATES), "--workers", "2", "--placement", "spread", "--out", str(out)]
    command = [sys.executable, "-m", "fedraa", "run", *FLAGS, *flags, "--address", three_nodes.address]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until(lambda: commits(out) > 50, driver)
        three_nodes.remove_node(lost, allow_graceful=False)
        three_nodes.add_node(num_cpus=1)
        said, _ = driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()
    assert driver.returncode == 0, said
    assert '"error":"worker died"' in (out / "events.jsonl").read_text()
    same(out, run_locally(tmp_path / "here", UPDATES))
