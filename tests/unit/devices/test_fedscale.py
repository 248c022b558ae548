"""The traces of FedScale: its formulas for the time of a task, and the files that are refused."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedraa import Experiment, replay, run
from fedraa.devices.availability import Availability, availability_from
from fedraa.devices.compute_speeds import make_fleet
from fedraa.devices.fedscale import FedScaleFleet, read_fedscale_availability
from fedraa.devices.fleet import Load
from fedraa.engine.build import build_run
from fedraa.errors import InputError

TRACE = {"duration": 150, "inactive": [50, 150], "finish_time": 200, "active": [0, 100], "model": "CPH1801"}


def write(path: Path, devices: Any) -> Path:
    path.write_bytes(pickle.dumps(devices))
    return path


def test_task_time_follows_the_formula_of_fedscale(tmp_path: Path) -> None:
    """3 · 32 · 10 samples · 50 ms are 48 s, and 8000 kbit down and up at 4000 kbit/s are 2 s each."""
    path = write(tmp_path / "client_device_capacity", {1: {"computation": 50.0, "communication": 4000.0}})
    fleet = make_fleet(f"fedscale({str(path)!r}, flops=2e6)", 3, units="physical", seed=0)
    work = 3 * 2e6 * 32 * 10
    assert fleet.cost(Load(work, 0, 0)) == pytest.approx([48] * 3)
    assert fleet.cost(Load(work, 1e6, 1e6)) == pytest.approx([52] * 3)


def test_clients_get_different_devices_drawn_from_the_seed(tmp_path: Path) -> None:
    devices = {k: {"computation": float(k), "communication": np.float64(k)} for k in range(1, 101)}
    fleet = FedScaleFleet(str(write(tmp_path / "capacity", devices)), 1e9)
    drawn = fleet(100, np.random.default_rng(0))["uplink"]
    assert sorted(drawn / 125) == pytest.approx(list(range(1, 101)))
    some = [make_fleet(fleet, 5, units="physical", seed=seed).uplink.tolist() for seed in (1, 1, 2)]
    assert some[0] == some[1] != some[2]


def test_a_device_is_available_as_in_its_trace(tmp_path: Path) -> None:
    """The ends of the spans are included, and the trace repeats after 200 s, in any order of the calls."""
    trace = read_fedscale_availability(write(tmp_path / "behave", {7: TRACE}), 2, seed=0)
    for client in (0, 1):
        for time in (320.0, 10.0, 50.0, 120.0, 210.0, 220.0, 100.0, 150.0):
            assert trace.finish(client, time, 0.5) == time + 0.5
        # Not available from 51 to 100 and from 151 to 200.
        assert trace.finish(client, 70.0, 0.5) == 100.5
        assert trace.finish(client, 470.0, 0.5) == 500.5
        assert trace.finish(client, 50.0, 3.0) == 102.0
        assert trace.finish(client, 160.0, 60.0) == 309.0
    assert availability_from(trace.described()) == trace


def test_clients_can_have_different_periods() -> None:
    availability = Availability({0: [(0.0, 1.0)], 1: [(0.0, 1.0)]}, None, {0: 2.0, 1: 10.0})
    assert [availability.finish(client, 1.5, 0.5) for client in (0, 1)] == [2.5, 10.5]


@pytest.mark.parametrize(
    "change",
    [
        {"inactive": [50]},
        {"active": [0, 40]},
        {"active": [], "inactive": []},
        {"active": [-1, 100]},
        {"finish_time": 120},
        {"finish_time": float("nan")},
        {"active": ["a", "b"]},
        {"active": [0, float("nan")]},
        {"finish_time": None},
    ],
)
def test_a_malformed_trace_is_refused_with_the_device(change: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "behave", {7: TRACE | change})
    with pytest.raises(InputError, match="device 7"):
        read_fedscale_availability(path, 1, seed=0)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "50", None, True])
def test_a_malformed_capacity_is_refused_with_the_device(value: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "capacity", {3: {"computation": value, "communication": 1.0}})
    with refuses(f"{path}: device 3 computation"):
        make_fleet(FedScaleFleet(str(path), 1e9), 1, units="physical", seed=0)


class Command:
    """An object whose pickle would run a command when it is read."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("was_called",)


@pytest.mark.parametrize("devices", [{1: Command()}, Command(), {1: os.getcwd}])
def test_a_pickle_that_calls_functions_is_refused(
    devices: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "behave", devices)
    with refuses(str(path), "would call"):
        read_fedscale_availability(path, 1, seed=0)
    assert not (tmp_path / "was_called").exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1, 2]), pickle.dumps({})])
def test_file_that_is_no_trace_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "behave"
    path.write_bytes(content)
    with refuses(str(path)):
        read_fedscale_availability(path, 1, seed=0)
    with refuses(str(tmp_path / "absent")):
        read_fedscale_availability(tmp_path / "absent", 1, seed=0)


def test_a_run_with_both_traces_replays(tmp_path: Path) -> None:
    capacity = {k: {"computation": 20.0 * k, "communication": 1000.0 * k} for k in range(1, 6)}
    write(tmp_path / "capacity", capacity)
    write(tmp_path / "behave", dict.fromkeys(range(1, 6), TRACE))
    fields: dict[str, Any] = {
        "method": "fedasync",
        "clients": 3,
        "hidden": (8,),
        "compute": f"fedscale({str(tmp_path / 'capacity')!r}, flops=1200)",
        "availability": f"fedscale:{tmp_path / 'behave'}",
        "updates": 5,
        "engine": "local",
        "quiet": True,
        "out": tmp_path / "run",
    }
    history = run(Experiment(units="physical", **fields))
    assert len(history.events) >= 5
    # The spans of FedScale repeat, so every client returns.
    build_run(Experiment(units="physical", **fields | {"method": "ace", "out": None}))
    replay(history.directory)
    with refuses("units", got="relative"):
        run(Experiment(**fields | {"out": tmp_path / "relative", "compute": "1:1"}))
    with refuses("units", got="relative"):
        run(Experiment(**fields | {"out": tmp_path / "relative", "availability": None}))
    with refuses("availability_period", got=5.0):
        run(Experiment(units="physical", **fields | {"out": tmp_path / "period"}, availability_period=5.0))
