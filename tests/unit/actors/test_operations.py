"""The commands for the runs of a cluster: answers of servers that may have ended, and refusals."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError
from refusals import refuses

from actors.cluster import operations, placement


class Server:
    """A server actor that ends after it has given some answers."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self.look = SimpleNamespace(remote=lambda: self._look)

    def _look(self) -> tuple[None, int]:
        if not self._answers:
            raise RayActorError
        self._answers -= 1
        return None, 2


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Server]:
    """Return the servers of a simulated cluster by name. A test may add servers."""
    servers: dict[str, Server] = {}

    def get(answer: Callable[[], Any], timeout: float | None = None) -> Any:
        return answer()

    monkeypatch.setattr(operations, "join_cluster", lambda address: None)
    monkeypatch.setattr(operations.ray, "get", get)
    monkeypatch.setattr(operations.ray, "get_actor", lambda name, namespace: servers[name])
    monkeypatch.setattr(
        operations.ray.util,
        "list_named_actors",
        lambda all_namespaces: [{"namespace": operations.NAMESPACE, "name": name} for name in servers],
    )
    return servers


def test_a_run_that_ends_after_its_answer_is_listed(servers: dict[str, Server]) -> None:
    servers |= {"host:/runs/a#1": Server(answers=1), "host:/runs/b#2": Server(answers=0)}
    assert operations.list_runs("auto") == [("host:/runs/a", None, 2)]


def test_stop_on_a_cluster_without_runs_is_refused(servers: dict[str, Server]) -> None:
    with refuses("run", "nothing to stop"):
        operations.stop_run("runs/first", "auto")


def test_fetch_from_an_unknown_node_names_its_option(
    servers: dict[str, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "living_nodes", list)
    with refuses("node", got="mars"):
        operations.fetch_run(tmp_path, "mars", "auto", tmp_path / "out")
