"""Refusals of the commands for the runs of a cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
from refusals import refuses

from actors.cluster import operations


def test_stop_on_a_cluster_without_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_servers() -> Iterator[tuple[str, Any]]:
        return iter(())

    monkeypatch.setattr(operations, "join_cluster", lambda address: None)
    monkeypatch.setattr(operations, "_find_servers", find_no_servers)
    with refuses("run", "nothing to stop"):
        operations.stop_run("runs/first", "auto")
