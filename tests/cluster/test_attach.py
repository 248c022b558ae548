"""Problems with a cluster are reported in one sentence, within seconds."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nodes import Nodes, free_port
from refusals import refuses

from actors.cluster.attach import join_cluster
from actors.cluster.submit import check_size
from actors.ray_versions import MAX_JOB_BYTES

pytestmark = pytest.mark.cluster

# The limit on a busy machine. Most of a command's start is spent on imports.
SECONDS = 15.0
RUN = ("--hidden", "8", "--clients", "4", "--local-steps", "2", "--updates", "20", "--quiet")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nobody_answers(scheme: str) -> None:
    started, address = time.monotonic(), f"{scheme}127.0.0.1:{free_port()}"
    with refuses("address", address, "ray start --head"):
        join_cluster(address)
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_somebody_else_listens(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started, address = time.monotonic(), f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        with refuses("address", address):
            join_cluster(address)
    assert time.monotonic() - started < SECONDS


def run_python(code: str, arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


WRONG, NONE = {"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}


COMMANDS = "import sys; from fedraa.cli.main import main; print(*(main(words.split()) for words in sys.argv[1:]))"


@pytest.mark.parametrize("ours", [WRONG, NONE])
def test_a_wrong_token_or_none(ours: dict[str, str], three: Nodes) -> None:
    host = "127.0.0.1"
    addresses = [f"{host}:{three.port}", f"http://{host}:{three.dashboard}"]
    commands = [f"status --address {addresses[0]}", f"submit --address {addresses[1]} run"]
    if ours is WRONG:
        addresses.append(f"ray://{host}:{three.client}")
        commands.append(f"status --address {addresses[2]}")
    answer = run_python(COMMANDS, commands, three.environment | ours)
    assert answer.stdout.split() == ["2"] * len(commands), answer.stderr
    for sentence, address in zip(answer.stderr.splitlines(), addresses, strict=True):
        assert sentence.startswith("fedraa: address: ")
        assert address in sentence
        assert "`ray get-auth-token`" in sentence


@pytest.mark.parametrize("client", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_another_version_of_ray(client: bool, three: Nodes) -> None:
    address = f"ray://127.0.0.1:{three.client}" if client else three.address
    older = "import sys, ray; ray.__version__ = '2.0.1'; from fedraa.cli.main import main; sys.exit(main(sys.argv[1:]))"
    answer = run_python(older, ["status", "--address", address], three.environment)
    assert answer.returncode == 2, answer.stderr
    said = answer.stderr.splitlines()[-1]
    assert said.startswith("fedraa: address: ")
    assert address in said
    assert "Ray 2.0.1 and Python" in said


@pytest.mark.slow
def test_a_node_without_torch(three: Nodes, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    three.join("bare", {"bare": 2}, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    flags = ("run", *RUN, "--address", three.address, "--out", str(tmp_path / "run"))
    server = three.fedraa(*flags, "--server-node", "bare")
    worker = three.fedraa(*flags, "--resources", "1:bare=1", "1:bare=1")
    three.kill("bare")
    assert server.returncode == 2, server.stderr
    said = server.stderr.splitlines()[-1]
    assert said.startswith("fedraa: address: ")
    assert re.search(r"ModuleNotFoundError: .*'torch'", said)
    assert worker.returncode == 1, worker.stderr
    assert re.search(r"^fedraa: workers: .* tier \d.*torch", worker.stderr, re.M)


def test_a_job_with_too_much_to_send(tmp_path: Path) -> None:
    with (tmp_path / "data").open("wb") as stream:
        stream.truncate(MAX_JOB_BYTES + 1)  # takes no room on the disk
    with refuses("working_dir", str(tmp_path), ".gitignore"):
        check_size(tmp_path)
    (tmp_path / ".gitignore").write_text("data\n")
    check_size(tmp_path)
