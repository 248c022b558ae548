"""Calls of shards are repeated if their answers do not arrive."""

from types import SimpleNamespace
from typing import Any

import pytest

from actors.server import shard
from actors.server.shard import FIRST_WAIT_S, await_answers


def test_call_without_an_answer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[list[str], float]] = []

    def wait(refs: list[str], timeout: float) -> tuple[list[str], list[str]]:
        waits.append((list(refs), timeout))
        # Only these two attempts get an answer.
        return [ref for ref in refs if ref in ("a1", "b3")][:1], []

    def caller(name: str) -> Any:
        numbers = iter(range(1, 10))
        return lambda: f"{name}{next(numbers)}"

    monkeypatch.setattr(shard, "ray", SimpleNamespace(wait=wait, get=str.upper))
    assert await_answers([caller("a"), caller("b")]) == ["A1", "B3"]
    assert waits == [
        (["a1"], FIRST_WAIT_S),
        (["b1"], FIRST_WAIT_S),
        (["b1", "b2"], 2 * FIRST_WAIT_S),
        (["b1", "b2", "b3"], 4 * FIRST_WAIT_S),
    ]
