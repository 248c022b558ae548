"""The processes of a private cluster have imported their modules when the cluster is ready."""

import re
import subprocess
import sys

import pytest

from actors.cluster.own_cluster import RAYLET_DIED
from fedraa.cli.exit_code import TERMINATED

pytestmark = pytest.mark.cluster

LOOK = """
import ray
from actors.cluster.engine import provide_cluster
from fedraa.config.sections import ClusterOptions

def imported():
    import sys
    return "actors.worker.worker" in sys.modules

with provide_cluster(ClusterOptions(workers=1), clients=10):
    print(ray.get(ray.remote(imported).remote()))
"""


@pytest.mark.slow
def test_processes_of_a_new_cluster_have_imported_the_worker_module() -> None:
    ended = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "True"


AGAIN = """
import sys
from pathlib import Path
import ray
from actors.cluster import own_cluster
from benchmarks.system.processes import list_descendants, process_title

init, seen = ray.init, []

def second_time(**options):
    init(**options)
    seen.append((ray.get_runtime_context().gcs_address, options["_temp_dir"]))
    if len(seen) == 1:
        raise RuntimeError("late")

ray.init = second_time
with own_cluster.own_cluster(1):
    (port, folder), (other, elsewhere) = seen
    assert port != other and folder != elsewhere
    assert ray.get(ray.remote(lambda: 3).remote()) == 3
    below = [process_title(process) for process in list_descendants(own_cluster.os.getpid())]
    assert any(elsewhere in one for one in below)
    assert not any(folder in one for one in below), below
    assert not Path(folder).parent.exists()
assert not Path(elsewhere).parent.exists()
"""


@pytest.mark.slow
@pytest.mark.linux
def test_half_started_cluster_is_removed_and_another_starts_on_a_new_port() -> None:
    ended = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    # On a busy machine, fedraa allows more tries.
    assert re.fullmatch(r"engine: .* late; .* 2 of \d+\n", ended.stderr)


BARE = """
import os, signal
import ray
from actors.cluster import own_cluster
from benchmarks.system.processes import list_descendants

def named():
    names = {}
    for process in list_descendants(os.getpid()):
        try:
            names[process] = open(f"/proc/{process}/comm").read().strip()
        except OSError:
            pass  # it has just ended
    return names

with own_cluster.own_cluster(1):
    assert ray.get(ray.remote(lambda: 3).remote()) == 3
    names = named()
    rays = {name for name in names.values() if not name.startswith("ray::")}
    assert rays <= {"gcs_server", "raylet", "cat", "python"}, rays
    os.kill(next(process for process, name in names.items() if name == "raylet"), signal.SIGKILL)
left = [process for process in names if os.path.exists(f"/proc/{process}") and process in named()]
print(left)
"""


@pytest.mark.linux
@pytest.mark.slow
def test_cluster_starts_only_needed_processes_and_all_end_with_the_raylet() -> None:
    ended = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr


STOPPED = """
import os, signal, sys, time
from ray._private import worker
from actors.cluster.own_cluster import own_cluster
from fedraa.cli.exit_code import exit_code, interrupt_on_termination

connect = worker.connect

def connect_and_terminate(*args, **options):
    connect(*args, **options)
    os.kill(os.getpid(), signal.SIGTERM)

def start():
    with interrupt_on_termination(), own_cluster(1):
        pass

worker.connect = connect_and_terminate
code = exit_code(start)
# Ray's C++ code would abort the process three seconds after the signal.
time.sleep(4)
sys.exit(code)
"""


@pytest.mark.slow
def test_sigterm_during_the_start_of_a_cluster_ends_the_command_with_code_130() -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, check=False)
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr.splitlines()[-1] == f"fedraa: {TERMINATED}"


DIES = """
from ray._private import worker
from actors.cluster.own_cluster import own_cluster

connect = worker.connect

def connect_late(*args, **options):
    (raylet,) = worker._global_node.all_processes["raylet"]
    raylet.process.kill()
    raylet.process.wait()
    connect(*args, **options)

worker.connect = connect_late
with own_cluster(1):
    print("started")
"""


@pytest.mark.slow
def test_raylet_death_during_registration_ends_the_driver_with_an_error() -> None:
    ended = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1] == f"fedraa: {RAYLET_DIED}"
