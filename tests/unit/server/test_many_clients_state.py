"""State that grows with the clients that take part, not with the number of all clients."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fedraa as fl
from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.devices.availability import Availability, Daily, availability_from, read_availability
from fedraa.ledger.concurrency import Concurrency
from fedraa.methods.ram_fed import MemorisedMean
from fedraa.replay.replay import replay
from fedraa.rng import generator
from fedraa.rundir.packed_columns import pack_column, unpack_column
from fedraa.vectors.client_rows import BLOCK_BYTES, ClientRows
from fedraa.vectors.delta_view import DeltaView


@pytest.mark.parametrize("in_memory", [2**30, 0])
def test_client_row_is_created_when_its_client_first_appears(in_memory: int) -> None:
    # A block has two rows.
    size = BLOCK_BYTES // 8
    rows = ClientRows(size, 1_000_000, lambda: np.full(size, 7, np.float32), in_memory)
    assert rows.peek_row(3)[0] == 7
    assert len(rows) == 0
    for client in (999_999, 3, 5, 3):
        rows[client][:] += client
    assert len(rows) == 3
    assert [rows[client][-1] for client in (999_999, 3, 5)] == [1_000_006, 13, 12]
    assert isinstance(rows[5].base.base if in_memory else rows[5].base, np.memmap) is not bool(in_memory)
    again = ClientRows(size, 1_000_000, lambda: np.zeros(size, np.float32))
    again.restore(rows.state())
    assert [again[client][0] for client in (999_999, 3, 5, 4)] == [1_000_006, 13, 12, 0]


@pytest.mark.parametrize("in_memory", [2**30, 0])
def test_rows_in_a_checkpoint_do_not_change_during_later_writes(in_memory: int) -> None:
    """A checkpoint copies no rows. A block that is written meanwhile is copied to its place in memory or a file."""
    rows = ClientRows(BLOCK_BYTES // 4, 9, lambda: np.zeros(BLOCK_BYTES // 4, np.float32), in_memory)
    for client in range(3):
        rows[client][:] = client
    first, second = rows.state()["rows"], rows.state()["rows"]
    assert np.shares_memory(first[1], second[1])
    del second
    rows[1][:] = 7
    assert isinstance(rows[1].base.base if in_memory else rows[1].base, np.memmap) is not bool(in_memory)
    assert [block[0, 0] for block in first] == [0, 1, 2]
    assert [rows.peek_row(client)[-1] for client in range(3)] == [0, 7, 2]
    assert np.shares_memory(rows.peek_row(2), first[2])
    kept = rows.peek_row(2)
    del first
    # No checkpoint refers to the block any more.
    rows[2][:] = 5
    assert kept[0] == 5


@pytest.mark.parametrize("appeared", [(4, 0, 2), (1, 3), range(5), ()])
def test_sum_of_rows_equals_the_sum_of_one_array_bit_for_bit(appeared: Sequence[int]) -> None:
    rng, whole = np.random.default_rng(0), np.zeros((5, 1000), np.float32)
    rows = ClientRows(1000, 5, lambda: np.zeros(1000, np.float32))
    for client in appeared:
        whole[client] = rows[client][:] = rng.choice([-0.0, 0.1, 1e8, -3e-8], 1000).astype(np.float32)
    mean = rows.sum(slice(0, 1000)) / np.float32(5)
    assert mean.tobytes() == whole.mean(axis=0, dtype=np.float32).tobytes()


def test_ram_fed_remembers_only_clients_that_took_part() -> None:
    mean = MemorisedMean().bind(1000, 10**6)
    for client in (999_999, 3):
        mean.add(ClientDelta(client, DeltaView(slice(None), np.ones(1000, np.float32)), 1.0, 0.1))
    mean.finish(RoundTotals(np.full(1000, 2, np.int32), 0.1))
    assert list(mean.state()["memory"]["clients"]) == [999_999, 3]
    again = MemorisedMean().bind(1000, 10**6)
    again.restore(mean.state())
    assert list(again.state()["memory"]["clients"]) == [999_999, 3]


def test_next_client_is_an_idle_client() -> None:
    some = Concurrency(6, 3, seed=1)
    busy = set(some.first_clients())
    assert len(busy) == 3
    seen = set()
    for task in range(60):
        client = min(busy)
        busy.remove(client)
        busy |= set(some.next_clients(client, task, busy))
        assert len(busy) == 3
        seen |= busy
    assert seen == set(range(6))
    everyone = Concurrency(6, None, seed=1)
    assert everyone.first_clients() == range(6)
    assert everyone.next_clients(4, 9, ()) == (4,)


def test_run_with_limited_concurrency_replays_and_resumes(tmp_path: Path) -> None:
    given = {"engine": "local", "clients": 12, "concurrency": 3, "quiet": True, "fragments": 2, "local_steps": 1}
    history = fl.run(updates=20, out=tmp_path / "whole", **given)
    dispatched = [line["client"] for line in history.lines() if line["kind"] == "dispatch"]
    assert len(set(dispatched[:3])) == 3
    assert len(set(dispatched)) > 6
    assert "consistent" in replay(tmp_path / "whole")
    fl.run(updates=9, out=tmp_path / "part", **given)
    longer = fl.resume(tmp_path / "part", updates=20)
    assert longer.summary["model_sha256"] == history.summary["model_sha256"]


def test_long_columns_are_packed() -> None:
    column = np.random.default_rng(0).random(10_001)
    column[5] = np.inf
    assert unpack_column(pack_column(column)) == [None if value == np.inf else value for value in column.tolist()]
    assert isinstance(pack_column(column), dict)
    assert pack_column(np.array([1, 2])) == [1, 2]


def test_daily_availability_equals_explicit_time_spans() -> None:
    daily = read_availability(Path("daily:0.25"), 5, 8.0, seed=3)
    assert isinstance(daily, Daily)
    rng = np.random.default_rng(0)
    for client in range(5):
        phase = float(generator(3, "availability", client).uniform(0, 8))
        spans = [(phase + 8 * day, phase + 8 * day + 2) for day in range(-1, 40)]
        by_hand = Availability({client: [(max(0.0, a), b) for a, b in spans if b > 0]})
        for start, work in rng.uniform(0, 40, (50, 2)).tolist():
            assert daily.finish(client, start, work) == pytest.approx(by_hand.finish(client, start, work))
    assert availability_from(daily.described()) == daily


@pytest.mark.parametrize(
    ("text", "period", "said"),
    [("daily:2", 8.0, "share"), ("daily:x", 8.0, "share"), ("daily:0.5", None, "day")],
)
def test_malformed_daily_availability_is_refused(text: str, period: float | None, said: str) -> None:
    with pytest.raises(ValueError, match=f"^availability.*{text}.*{said}"):
        read_availability(Path(text), 5, period)
