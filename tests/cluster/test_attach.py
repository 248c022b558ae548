"""Problems with a cluster are reported in one sentence, within seconds."""

import socket
import time
from pathlib import Path

import pytest
from nodes import free_port
from refusals import refuses

from actors.cluster.attach import join_cluster
from actors.cluster.submit import check_size
from actors.ray_versions import MAX_JOB_BYTES

pytestmark = pytest.mark.cluster

# The limit on a busy machine. Most of a command's start is spent on imports.
SECONDS = 15.0


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_join_refuses_an_address_where_nothing_listens(scheme: str) -> None:
    started, address = time.monotonic(), f"{scheme}127.0.0.1:{free_port()}"
    with refuses("address", address, "ray start --head"):
        join_cluster(address)
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_join_refuses_an_address_where_another_program_listens(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started, address = time.monotonic(), f"{scheme}127.0.0.1:{silent.getsockname()[1]}"
        with refuses("address", address):
            join_cluster(address)
    assert time.monotonic() - started < SECONDS


def test_check_size_refuses_a_folder_over_the_limit_unless_git_ignores_it(tmp_path: Path) -> None:
    with (tmp_path / "data").open("wb") as stream:
        stream.truncate(MAX_JOB_BYTES + 1)  # takes no room on the disk
    with refuses("working_dir", str(tmp_path), ".gitignore"):
        check_size(tmp_path)
    (tmp_path / ".gitignore").write_text("data\n")
    check_size(tmp_path)
