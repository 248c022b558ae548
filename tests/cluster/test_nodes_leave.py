"""Nodes are lost and join in the middle of a run: it ends with the bits that it has without a cluster."""

from pathlib import Path

import pytest
from nodes import nodes, until
from test_real_cluster import FLAGS, commits, here, same

from fedraa.history import History

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_every_node_of_the_start_is_lost_and_the_run_goes_on_on_others(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with nodes() as cluster:
        cluster.join("one", {})
        cluster.join("two", {})
        flags = ("--updates", "2500", "--workers", "2", "--placement", "spread", "--address", cluster.address)
        driver = cluster.begin("run", *FLAGS, *flags, "--out", str(out))
        try:
            until(lambda: commits(out) > 100, driver)
            cluster.kill("one")
            cluster.join("three", {})
            until(lambda: '"fault"' in (out / "events.jsonl").read_text(), driver)
            cluster.kill("two")
            said, _ = driver.communicate(timeout=120)
        finally:
            driver.kill()
        assert driver.returncode == 0, said
    died = [line for line in History(out).lines() if line["kind"] == "fault" and line["what"] == "worker died"]
    assert {line["worker"] for line in died} == {0, 1}
    same(out, here(tmp_path / "here", 2500))
