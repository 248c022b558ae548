"""Nodes are lost and join during a run: it ends with the bits of a run without a cluster."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from nodes import nodes
from running import PATIENCE, until
from same_run import same
from test_real_cluster import FLAGS, commits, run_locally

from fedraa.rundir.history import History

GONE = re.compile(r"worker (died|did not start)")
DEPLOY = Path(__file__).parents[2] / "deploy"

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_run_continues_on_new_nodes_after_all_initial_nodes_are_lost(tmp_path: Path) -> None:
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
            said, _ = driver.communicate(timeout=2 * PATIENCE)
        finally:
            driver.kill()
        assert driver.returncode == 0, said
    # A run continues without workers that have not started. On a busy machine the second worker may not have started.
    gone = [line for line in History(out).lines() if line["kind"] == "fault" and GONE.match(str(line["error"]))]
    assert {line["worker"] for line in gone} == {0, 1}
    same(out, run_locally(tmp_path / "here", 2500))


def test_jobs_of_the_slurm_script_share_a_node_and_are_resumed(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    stand_ins = {
        "scontrol": "printf 'first\\nsecond\\n'",
        "hostname": "echo 127.0.0.1",
        "srun": f"while [[ $1 == -* ]]; do [[ $1 == -w ]] && shift; shift; done\n"
        f'if [[ $1 == ray ]]; then shift; set -- {sys.executable} -m ray.scripts.scripts "$@"; fi\n'
        'exec "$@"',
    }
    for name, text in stand_ins.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (programs / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "any[1-2]", "SLURM_CPUS_PER_TASK": "1", "OMP_NUM_THREADS": "1"}
    slurm["RAY_USAGE_STATS_ENABLED"] = "0"
    slurm["PATH"] = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def start(job: int, *command: str) -> subprocess.Popen[str]:
        script = ["bash", str(DEPLOY / "slurm.sh"), *command]
        environment = os.environ | slurm | {"SLURM_JOB_ID": str(os.getpid() + job)}
        return subprocess.Popen(
            script, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def end(jobs: Sequence[subprocess.Popen[str]]) -> None:
        try:
            for job in jobs:
                output, _ = job.communicate(timeout=2 * PATIENCE)
                assert job.returncode == 0, output
        finally:
            for job in jobs:
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)

    outs = [tmp_path / "first", tmp_path / "second"]
    flags = ("run", *FLAGS, "--updates", "40", "--workers", "2", "--out")
    end([start(job, *flags, str(out)) for job, out in enumerate(outs)])
    end([start(0, "resume", str(outs[0]), "--updates", "60")])
    same(outs[0], run_locally(tmp_path / "here", 60))
    same(outs[1], run_locally(tmp_path / "shorter", 40))


def test_the_job_of_kubernetes_runs_on_a_cluster(tmp_path: Path) -> None:
    documents = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    (entrypoint,) = [document["spec"]["entrypoint"] for document in documents if document["kind"] == "RayJob"]
    # The cluster of this test has one core.
    smaller = entrypoint.replace("--workers 4", "--workers 1").replace("--updates 400", "--updates 50")
    arguments = shlex.split(smaller.replace("/home/fedraa/runs", str(tmp_path)))[1:]
    with nodes() as cluster:
        cluster.join("one", {})
        # Ray sets this address in a job.
        job = cluster.fedraa(*arguments, RAY_ADDRESS=cluster.address)
    assert job.returncode == 0, job.stderr
    assert History(tmp_path / "kubernetes").summary["steps"] == 50
