"""The times at which tasks end: jitter, and devices that are available only at some times."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from fedraa import Experiment, run
from fedraa.devices.availability import Availability, Daily, Timing, availability_from, read_availability
from fedraa.replay.replay import replay


def test_jitter_is_uniform_around_one_and_reproducible() -> None:
    timing = Timing(0, 0.1)
    draws = np.array([timing.due(client, turn, 0.0, 1.0) for client in range(20) for turn in range(100)])
    assert draws.min() >= 0.9
    assert draws.max() <= 1.1
    assert abs(draws.mean() - 1) < 0.006  # standard error 0.2/sqrt(12)/sqrt(2000) = 0.0013
    assert abs(draws.std() - 0.2 / np.sqrt(12)) < 0.003
    assert timing.due(3, 4, 0.0, 1.0) == draws[304]
    assert Timing(0, 0.0).due(3, 4, 2.0, 1.5) == 3.5


def test_task_continues_when_its_device_is_available_again() -> None:
    availability = Availability({0: [(1.0, 2.0), (4.0, 10.0)]})
    # The device waits until 1, and ends the task when it becomes unavailable.
    assert availability.finish(0, 0.0, 1.0) == 2.0
    # Half of the task is done before the gap and half after it.
    assert availability.finish(0, 1.5, 1.0) == 4.5
    assert availability.finish(0, 2.5, 3.0) == 7.0
    # The device is never available again.
    assert availability.finish(0, 9.5, 1.0) == np.inf
    # A device that is not in the file is always available.
    assert availability.finish(1, 9.5, 1.0) == 10.5


@given(
    cuts=st.lists(st.integers(0, 19), min_size=2, max_size=6, unique=True),
    start=st.integers(0, 70),
    work=st.integers(1, 90),
)
def test_finish_time_over_periods_equals_a_count_unit_by_unit(cuts: list[int], start: int, work: int) -> None:
    edges = sorted(cuts)[: len(cuts) // 2 * 2]
    spans = [(float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    inside = [any(a <= unit < b for a, b in spans) for unit in range(20)]
    left, unit = work, start
    while left:
        left -= inside[unit % 20]
        unit += 1
    assert Availability({0: spans}, period=20.0).finish(0, float(start), float(work)) == pytest.approx(unit)


@pytest.mark.parametrize(
    ("spans", "period", "start", "work", "end"),
    [
        # The task needs 9 spans of 0.2: those from 1.0 to 9.0.
        ([(0.0, 0.2)], 1.0, 0.7285491774205701, 1.8, 9.2),
        # The task needs both spans of the periods 1, 2 and 3.
        ([(0.1, 0.4), (0.6, 0.8)], 1.0, 0.9, 1.5, 3.8),
        # The task needs the spans of the periods 3, 4, 5 and 6.
        ([(0.20999999999999996, 0.5599999999999999)], 0.7, 2.0906664540775206, 1.4, 4.76),
    ],
)
def test_task_that_fills_whole_spans_ends_in_spite_of_rounding(
    spans: list[tuple[float, float]], period: float, start: float, work: float, end: float
) -> None:
    assert Availability({0: spans}, period=period).finish(0, start, work) == pytest.approx(end)


@pytest.mark.parametrize(
    ("text", "place", "got"),
    [
        ("client,start\n0,1\n", "columns", ["client", "start"]),
        ("client,start,end\n0,2,1\n", "line 2", "0,2,1"),
        ("client,start,end\n0,0,2\n0,1,3\n", "line 3", "0,1,3"),
        ("client,start,end\n5,0,2\n", "line 2", "5,0,2"),
        ("client,start,end\n0,0,x\n", "line 2", "0,0,x"),
        ("client,start,end\n0,0,30\n", "line 2", "0,0,30"),
    ],
)
def test_wrong_spans_are_refused_by_row(tmp_path: Path, text: str, place: str, got: object) -> None:
    path = tmp_path / "there.csv"
    path.write_text(text)
    with refuses(f"availability: {path} {place}", got=got):
        read_availability(path, 5, 24.0)


def test_a_run_over_days_waits_for_its_devices_and_replays(tmp_path: Path) -> None:
    """A day has length 1. Client 0 is available in its first half, client 1 in the second, and client 2 always."""
    spans = tmp_path / "days.csv"
    spans.write_text("client,start,end\n0,0,0.5\n1,0.5,1\n")
    experiment = Experiment(
        method="fedavg",
        clients=3,
        hidden=(8,),
        local_epochs=1,
        compute="1:1",
        duration_jitter=0,
        rounds=3,
        availability=spans,
        availability_period=1.0,
        engine="local",
        out=tmp_path / "run",
    )
    history = run(experiment)
    rounds = history.events.query("kind == 'round'")["t"].tolist()
    # A task takes 0.2 of a device's available time. Client 1 is available from 0.5, and ends round 1 at 0.7. Client 0
    # is available again from 1.0, and ends round 2 at 1.2. Client 1 ends round 3 at 1.7. Shards differ by one sample in
    # 479.
    assert rounds == pytest.approx([0.7, 1.2, 1.7], abs=2e-3)
    replay(history.directory)


def test_device_may_be_available_without_end(tmp_path: Path) -> None:
    spans = tmp_path / "later.csv"
    spans.write_text("client,start,end\n0,0,0.1\n0,2,inf\n")
    availability = read_availability(spans, 2, None)
    assert availability.finish(0, 0.0, 0.5) == pytest.approx(2.4)
    assert availability.available_time(0, 0.0, 3.0) == pytest.approx(1.1)
    experiment = Experiment(method="fed-raa", clients=2, updates=4, availability=spans, engine="local")
    history = run(experiment, out=tmp_path / "run", quiet=True)
    resolved = history.config["resolved"]["availability"]
    assert resolved["spans"] == {"0": [[0.0, 0.1], [2.0, None]]}
    assert availability_from(resolved) == availability
    replay(history.directory)


def test_run_whose_round_can_never_end_exits_with_code_1(tmp_path: Path) -> None:
    spans = tmp_path / "gone.csv"
    spans.write_text("client,start,end\n0,0,0.3\n")
    arguments = ["run", "--method", "fedavg", "--clients", "2", "--hidden", "8", "--rounds", "9", "--engine", "local"]
    from fedraa.cli.main import main

    assert main([*arguments, "--availability", str(spans), "--out", str(tmp_path / "run"), "--quiet"]) == 1


def test_available_time_equals_a_count_unit_by_unit() -> None:
    """The device is available at 1, 2, 5 and 6 of every 8 units. Without a period, it leaves after 7."""
    spans = {0: [(1.0, 3.0), (5.0, 7.0)]}
    daily = Daily(0.5, 8.0, 3)
    for start in range(20):
        for end in range(start, 20):
            units = range(start, end)
            repeated = sum(unit % 8 in (1, 2, 5, 6) for unit in units)
            assert Availability(spans, 8.0).available_time(0, start, end) == repeated
            once = sum(unit in (1, 2, 5, 6) for unit in units)
            assert Availability(spans).available_time(0, start, end) == once
            assert Availability(spans).available_time(1, start, end) == end - start
            if daily.find_start(2, start) == start:
                work = daily.available_time(2, start, end)
                assert daily.finish(2, start, work) <= end + 1e-9
                assert daily.finish(2, start, work + 1e-6) > end


def test_finished_cost_undoes_jitter_and_pauses() -> None:
    """A task ends at the time at which all of its cost is finished."""
    for availability in (None, Availability({0: [(0.0, 1.0), (2.0, 3.0)]}, 4.0), Daily(0.3, 2.0, 1)):
        timing = Timing(5, 0.4, availability)
        for turn in range(5):
            due = timing.due(0, turn, 0.5, 3.0)
            assert timing.finished_cost(0, turn, 0.5, due) == pytest.approx(3.0)
            assert 0 <= timing.finished_cost(0, turn, 0.5, 0.6) < 3.0


def test_finish_time_in_a_later_period_is_a_python_float() -> None:
    """The device is available in half of every period of 2, so that 5 units of work end at 2 + 2 + 2 + 2 + 1."""
    assert repr(Availability({0: [(0.0, 1.0)]}, 2.0).finish(0, 0.0, 5.0)) == "9.0"
