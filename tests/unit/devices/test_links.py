"""Bandwidths that change with time: the duration of transfers, the file, and a run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from fedraa import Experiment, run
from fedraa.devices.compute_speeds import make_fleet, with_links
from fedraa.devices.fleet import Load
from fedraa.devices.link_traces import LinkTrace, describe_links, read_links, restore_links
from fedraa.replay.replay import replay

INFINITE = float("inf")
SMALL: dict[str, Any] = {"clients": 2, "hidden": (8,), "local_steps": 2, "engine": "local", "quiet": True}


def test_transfer_uses_the_bandwidths_at_its_time() -> None:
    # A period of 3 moves 2 · 1 + 4 · 2 = 10 down.
    trace = LinkTrace(((1.0, 2.0, INFINITE), (3.0, 4.0, 1.0)))
    assert trace.mean_downlink == pytest.approx(10 / 3)
    assert trace.mean_uplink == INFINITE
    assert trace.download_time(0.0, 1.0) == 0.5
    assert trace.download_time(0.0, 6.0) == 2.0
    # 2 until the end of the trace, and the rest at its start.
    assert trace.download_time(2.5, 3.0) == 1.0
    # Two periods move 20, the next second 2, and three quarters of a second 3.
    assert trace.download_time(0.0, 25.0) == 7.75
    assert trace.upload_time(0.5, 7.0) == 0.0
    assert trace.upload_time(4.0, 2.0) == 2.0


@given(
    rates=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    start=st.integers(0, 40),
    duration=st.integers(1, 60),
)
def test_download_time_equals_a_count_unit_by_unit(rates: list[int], start: int, duration: int) -> None:
    trace = LinkTrace(tuple((float(place + 1), float(rate), 1.0) for place, rate in enumerate(rates)))
    moved = sum(rates[unit % len(rates)] for unit in range(start, start + duration))
    assert trace.download_time(float(start), float(moved)) == pytest.approx(duration)


def test_phases_of_a_task_follow_one_another() -> None:
    """Latency 1, a download of 4 at bandwidth 2, training for 3, and an upload that begins at 6 with bandwidth 10."""
    fleet = make_fleet(lambda clients, rng: {"compute": [1.0], "latency": [1.0]}, 1, units="physical", seed=0)
    fleet = with_links(fleet, {0: LinkTrace(((6.0, 2.0, 1.0), (12.0, 2.0, 10.0)))})
    assert fleet.times(Load(3, 4, 20), 0, start=0.0) == (1, 2, 3, 2, 0)
    # The means do not depend on the time: 2 down, and 5.5 up.
    assert fleet.times(Load(3, 4, 22), 0) == (1, 2, 3, 4, 0)
    assert fleet.cost(Load(3, 4, 22)).tolist() == [10]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("client,end,downlink\n0,1,1\n", " columns"),
        ("client,end,downlink,uplink\n", ""),
        ("client,end,downlink,uplink\n2,1,1,1\n", " line 2"),
        ("client,end,downlink,uplink\n0,1,1,1\n0,1,1,1\n", " line 3"),
        ("client,end,downlink,uplink\n0,1,0,1\n", " line 2"),
        ("client,end,downlink,uplink\n0,1,1,x\n", " line 2"),
        ("client,end,downlink,uplink\n0,inf,1,1\n", " line 2"),
    ],
)
def test_wrong_rows_of_links_are_refused(text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "links.csv"
    path.write_text(text)
    with refuses(f"links: {path}{place}"):
        read_links(path, 2)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with refuses(f"links: {tmp_path / 'none.csv'}"):
        read_links(tmp_path / "none.csv", 2)


def test_a_description_restores_the_traces() -> None:
    traces = {1: LinkTrace(((1.0, 2.0, INFINITE), (3.0, 4.0, 1.0)))}
    assert restore_links("links", describe_links(traces), 2) == traces
    with refuses("links row 1"):
        restore_links("links", [(0, 1.0, 0.0, 1.0)], 2)


@pytest.mark.parametrize(
    ("method", "limit"),
    [
        ("fed-raa", {"updates": 40}),
        ("fedbuff", {"updates": 12, "buffer_size": 2}),
        ("fedavg", {"rounds": 4}),
        ("heterofl", {"rounds": 4}),
    ],
)
def test_a_run_follows_the_trace_and_replays(method: str, limit: dict[str, Any], tmp_path: Path) -> None:
    links = tmp_path / "links.csv"
    links.write_text("client,end,downlink,uplink\n0,0.05,10,10\n0,0.2,2,3\n")
    devices = tmp_path / "devices.csv"
    devices.write_text("compute,downlink,uplink\n1,1,1\n1,5,5\n")
    fields: dict[str, Any] = {"compute": str(devices), "links": links, **SMALL}
    history = run(Experiment(method=method, out=tmp_path / "run", **fields, **limit))
    sent = history.events.query("kind == 'dispatch'")
    costs = sent.groupby(["client", "fragment", "bytes_down"])["cost"].nunique()
    # The cost of the same task changes with time only for the client that has a trace.
    assert costs.loc[0.0].max() > 1
    assert costs.loc[1.0].max() == 1
    replay(history.directory)
