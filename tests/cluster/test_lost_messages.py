"""Runs in which Ray loses messages of calls: equal bits, without a death of a server, shard or worker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import end_with_parent
from running import FIELDS, FLAGS, PATIENCE
from same_run import same

from actors.pool.handles import MAX_IDLE_S
from benchmarks.system.faults import ARGUMENTS, PUSH, lose_messages
from fedraa.api import run
from fedraa.config.experiment import Experiment
from fedraa.rundir.history import History

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

UPDATES = 60


@pytest.mark.parametrize(("percent", "flags"), [(5, ()), (10, ("--server-shards", "2"))])
def test_lost_messages_are_not_reported_as_faults_and_change_no_bit(
    percent: int, flags: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedraa", "run", *FLAGS, "--updates", str(UPDATES), "--workers", "2", *flags]
    ended = subprocess.run(
        [*command, "--out", str(out), "--quiet"],
        env=os.environ | lose_messages(percent, PUSH),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=end_with_parent,
    )
    assert ended.returncode == 0, ended.stderr
    assert not [line for line in History(out).lines() if line["kind"] == "fault"]
    assert "died" not in ended.stderr
    same(out, run(Experiment(**FIELDS, updates=UPDATES, engine="local", out=tmp_path / "here")))


def test_a_call_that_never_begins_is_repeated_within_a_minute(tmp_path: Path) -> None:
    """The first notice about arguments is lost, so that the first call of its kind never begins."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedraa", "run", *FLAGS, "--updates", str(UPDATES), "--workers", "1", "--quiet"]
    first = {ARGUMENTS: {"num_failures": 1, "req_failure_prob": 100}}
    ended = subprocess.run(
        [*command, "--out", str(out)],
        env=os.environ | lose_messages(0) | {"RAY_testing_rpc_failure": json.dumps(first)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=end_with_parent,
    )
    assert ended.returncode == 0, ended.stderr
    [fault] = [line for line in History(out).lines() if line["kind"] == "fault"]
    assert "idle" in str(fault["error"])
    assert fault["wall"] < 2 * MAX_IDLE_S
    same(out, run(Experiment(**FIELDS, updates=UPDATES, engine="local", out=tmp_path / "here")))
