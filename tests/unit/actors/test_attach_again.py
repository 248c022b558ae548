"""A transient error of Ray's client at a busy head is retried once; other errors are reported at once."""

import pytest
import ray
from refusals import refuses

from actors.cluster import attach as room

ADDRESS = "ray://127.0.0.1:1"
PASSING = "Initialization failure from server:\nTraceback: psutil.ZombieProcess: PID still exists but it's a zombie"
VERSIONS = "Version mismatch: The cluster: Ray: 2.0.1 Python: 3.11.1 This process: Ray: 2.60.0 Python: 3.11.7"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Replace `ray.init`: it raises these errors in turn, and joins for None."""
    left: list[str | None] = []

    def init(**_: object) -> None:
        if (text := left.pop(0)) is not None:
            raise ConnectionError(text)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(room, "check_reachable", lambda address: None)
    return left


@pytest.mark.parametrize("text", [PASSING, "Starting Ray client server failed. See ray_client_server_1.err"])
def test_passing_trouble_is_asked_once_more(answers: list[str | None], text: str) -> None:
    answers += [text, None]
    room.join_cluster(ADDRESS)
    assert not answers


def test_trouble_that_stays_is_one_sentence(answers: list[str | None]) -> None:
    answers += [PASSING, PASSING, None]
    with refuses("address", ADDRESS, PASSING.splitlines()[0]):
        room.join_cluster(ADDRESS)
    assert answers == [None]


def test_another_version_is_said_at_once(answers: list[str | None]) -> None:
    answers += [VERSIONS, None]
    with refuses("address", ADDRESS, "Ray 2.0.1 and Python 3.11.1", "Ray 2.60.0 and Python"):
        room.join_cluster(ADDRESS)
    assert answers == [None]
