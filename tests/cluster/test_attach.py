"""What can be wrong with a cluster is said in one sentence, within seconds."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import Nodes, free_port, nodes

from actors.attach import attach
from actors.submit import GCS_STORAGE_MAX_SIZE, check_size

pytestmark = pytest.mark.cluster

SECONDS = 15.0  # on a crowded machine; the rest of a command's start is Python's imports
RUN = ("--hidden", "8", "--clients", "4", "--local-steps", "2", "--updates", "20", "--quiet")


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A head, and a node of which `import torch` fails."""
    packages = tmp_path_factory.mktemp("packages")
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    with nodes() as cluster:
        cluster.join("bare", {"bare": 1}, PYTHONPATH=f"{packages}:{os.environ.get('PYTHONPATH', '')}")
        yield cluster


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nobody_answers(scheme: str) -> None:
    started, address = time.monotonic(), f"{scheme}127.0.0.1:{free_port()}"
    with pytest.raises(ValueError, match=f"^address: no Ray cluster answers at {address}; start one with: "):
        attach(address)
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_somebody_else_listens(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started, address = time.monotonic(), f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"^address: no Ray cluster answers at {address}; "):
            attach(address)
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("ours", [{"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}])
@pytest.mark.parametrize("port", ["port", "client", "dashboard"])
def test_a_wrong_token_or_none(ours: dict[str, str], port: str, lacking: Nodes) -> None:
    at = {"port": "127.0.0.1", "client": "ray://127.0.0.1", "dashboard": "http://127.0.0.1"}[port]
    address = f"{at}:{getattr(lacking, port)}"
    command = ("submit", "--address", address, "run") if port == "dashboard" else ("status", "--address", address)
    answer = lacking.fedraa(*command, **ours)
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"fedraa: address: the cluster at {address} wants the token that `ray get-auth")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("client", [False, True])
def test_another_version_of_ray(client: bool, lacking: Nodes) -> None:
    address = f"ray://127.0.0.1:{lacking.client}" if client else lacking.address
    older = "import sys, ray; ray.__version__ = '2.0.1'; from fedraa.cli import main; sys.exit(main(sys.argv[1:]))"
    answer = subprocess.run(
        [sys.executable, "-c", older, "status", "--address", address],
        env=lacking.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 2, answer.stderr
    said = answer.stderr.splitlines()[-1]
    assert said.startswith(f"fedraa: address: the cluster at {address} has Ray ")
    assert said.endswith("; they must be the same")
    assert "but here are Ray 2.0.1 and Python" in said


def test_a_node_without_torch(lacking: Nodes, tmp_path: Path) -> None:
    flags = ("run", *RUN, "--address", lacking.address, "--workers", "1", "--out", str(tmp_path / "run"))
    server = lacking.fedraa(*flags, "--server-node", "bare")
    assert server.returncode == 2, server.stderr
    said = server.stderr.splitlines()[-1]
    assert said.startswith(
        "fedraa: address: node bare cannot run fedraa (ModuleNotFoundError: No module named 'torch')"
    )
    worker = lacking.fedraa(*flags)
    assert worker.returncode == 1, worker.stderr
    assert "no worker is left, 1 died 3 times in a row" in worker.stderr
    assert "No module named 'torch'" in worker.stderr.splitlines()[-1]


def test_a_job_with_too_much_to_send(tmp_path: Path) -> None:
    with (tmp_path / "data").open("wb") as stream:
        stream.truncate(GCS_STORAGE_MAX_SIZE + 1)  # takes no room on the disk
    with pytest.raises(ValueError, match=r"^working_dir: .* holds 0.537 GB, a job takes 0.537 GB; name what is not"):
        check_size(tmp_path)
    (tmp_path / ".gitignore").write_text("data\n")
    check_size(tmp_path)
