"""A transient error of Ray's client at a busy head is retried once; other errors are reported at once."""

import pytest
import ray
from refusals import refuses

from actors.cluster import attach
from actors.cluster.head import token_error

ADDRESS = "ray://127.0.0.1:1"
TRANSIENT = "Initialization failure from server:\nTraceback: psutil.ZombieProcess: PID still exists but it's a zombie"
VERSION_MISMATCH = "Version mismatch: The cluster: Ray: 2.0.1 Python: 3.11.1 This process: Ray: 2.60.0 Python: 3.11.7"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Replace `ray.init`: it raises these errors in turn, and joins for None."""
    left: list[str | None] = []

    def init(**_: object) -> None:
        if (text := left.pop(0)) is not None:
            raise ConnectionError(text)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(attach, "check_reachable", lambda address: None)
    return left


@pytest.mark.parametrize("text", [TRANSIENT, "Starting Ray client server failed. See ray_client_server_1.err"])
def test_transient_error_is_retried_once(answers: list[str | None], text: str) -> None:
    answers += [text, None]
    attach.join_cluster(ADDRESS)
    assert not answers


def test_error_that_remains_after_the_retry_is_reported(answers: list[str | None]) -> None:
    answers += [TRANSIENT, TRANSIENT, None]
    with refuses("address", ADDRESS, TRANSIENT.splitlines()[0]):
        attach.join_cluster(ADDRESS)
    assert answers == [None]


def test_version_mismatch_is_reported_without_a_retry(answers: list[str | None]) -> None:
    answers += [VERSION_MISMATCH, None]
    with refuses("address", ADDRESS, "Ray 2.0.1 and Python 3.11.1", "Ray 2.60.0 and Python"):
        attach.join_cluster(ADDRESS)
    assert answers == [None]


def test_error_about_the_token_names_the_file_from_which_ray_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    assert ".ray/auth_token" in str(token_error(ADDRESS))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/no/such/file")
    assert "/no/such/file" in str(token_error(ADDRESS))
    assert "auth_token" not in str(token_error(ADDRESS))
