"""A script that has called `ray.init` with Ray's default settings, which show the output of all processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedraa.rundir.history import History

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCRIPT = """
import sys, time
import ray
import fedraa

ray.init(num_cpus=2, include_dashboard=False)
fedraa.run(method="fedavg", hidden=(8,), clients=2, rounds=2, local_steps=2, workers=1, quiet=True, out=sys.argv[1])
ray.get(ray.remote(print).remote("the last line"))
# Ray needs a moment to show it.
time.sleep(3)
"""


def test_processes_of_a_run_print_nothing_on_the_terminal_of_a_script(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert History(tmp_path / "run").state == "ended by steps"
    assert "the last line" in ended.stdout
    assert "ParameterServer" not in ended.stdout
    assert "Worker" not in ended.stdout
