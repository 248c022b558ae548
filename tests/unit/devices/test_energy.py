"""The energy of tasks: power times time over the phases, in the log, the totals, the plan and the report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses
from sample_runs import write_run

import fedraa as fl
from fedraa import Experiment, run
from fedraa.cli.main import main
from fedraa.client.trainer import Trainer
from fedraa.devices.compute_speeds import make_fleet
from fedraa.devices.fleet import Load
from fedraa.engine.build import build_run
from fedraa.errors import Inconsistent
from fedraa.messages import Task, Update
from fedraa.replay.replay import replay
from fedraa.report.compare import run_row

ALL_WATTS = "compute,downlink,uplink,latency,watts_train,watts_down,watts_up,watts_idle\n"
SMALL: dict[str, Any] = {"clients": 4, "hidden": (8,), "local_steps": 2, "engine": "local", "quiet": True}


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """Return a file of four devices with watts. The second device is the fastest."""
    path = tmp_path / "devices.csv"
    path.write_text(
        ALL_WATTS
        + "1e7,1e5,5e4,0.1,4,1.5,1,0.3\n4e7,1e6,5e5,0.2,8,2,1,0\n2e7,inf,inf,0,3,1,1,1\n1e7,1e5,1e5,0,5,0,0,0\n"
    )
    return path


def test_energy_is_power_times_time(tmp_path: Path) -> None:
    """4 W · 48 s + 1.5 W · 2 s + 1 W · 2 s + 0.3 W · 8 s = 192 + 3 + 2 + 2.4."""
    path = tmp_path / "device.csv"
    path.write_text(ALL_WATTS + "2,4,4,8,4,1.5,1,0.3\n")
    fleet = make_fleet(str(path), 1, units="physical", seed=0)
    times = fleet.times(Load(work=96, down=8, up=8), 0)
    assert times == (8, 2, 48, 2, 0)
    assert fleet.energy(times, 0) == pytest.approx(199.4)


def test_energy_counts_only_known_watts_and_is_none_without_any(tmp_path: Path) -> None:
    path = tmp_path / "device.csv"
    path.write_text("compute,watts_train\n2,4\n")
    fleet = make_fleet(str(path), 1, units="physical", seed=0)
    assert fleet.energy(fleet.times(Load(96, 8, 8), 0), 0) == 192
    fleet = make_fleet("2:1", 1, units="physical", seed=0)
    assert fleet.energy(fleet.times(Load(96, 8, 8), 0), 0) is None


@pytest.mark.parametrize(
    ("columns", "row", "place"),
    [
        ("compute,watts_idle", "1,1", "columns"),
        ("compute,watts_train", "1,-1", "line 2 watts_train"),
        ("compute,watts_train", "1,inf", "line 2 watts_train"),
        ("compute,watts_train", "1,", "line 2 watts_train"),
    ],
)
def test_wrong_watts_are_refused(tmp_path: Path, columns: str, row: str, place: str) -> None:
    path = tmp_path / "device.csv"
    path.write_text(f"{columns}\n{row}\n")
    with refuses(f"compute: {path} {place}"):
        make_fleet(str(path), 1, units="physical", seed=0)


def test_watts_require_physical_units(devices: Path) -> None:
    with refuses("units", got="relative"):
        make_fleet(str(devices), 4, units="relative", seed=0)


@pytest.mark.parametrize(
    ("method", "limit"), [("fed-raa", {"updates": 9}), ("fedavg", {"rounds": 3}), ("heterofl", {"rounds": 3})]
)
def test_a_run_counts_the_energy_of_every_task_that_was_sent(
    method: str, limit: dict[str, Any], devices: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"compute": str(devices), "units": "physical", **SMALL}
    history = run(Experiment(method=method, out=tmp_path / "run", **fields, **limit))
    sent = history.events.query("kind == 'dispatch'").set_index("task")
    done = history.events.query("kind == 'commit'").set_index("task")
    compute, downlink, uplink, latency, train, down, up, idle = np.loadtxt(devices, delimiter=",", skiprows=1).T
    client = sent.loc[done.index, "client"].to_numpy(np.int64)
    expected = (
        train[client] * done["flops"] / compute[client]
        + down[client] * sent.loc[done.index, "bytes_down"] / downlink[client]
        + up[client] * done["bytes_up"] / uplink[client]
        + idle[client] * latency[client]
    )
    np.testing.assert_allclose(sent.loc[done.index, "energy"].astype(float), expected.astype(float), rtol=1e-12)
    # Tasks in flight at the end have also used energy.
    assert len(sent) >= len(done)
    assert history.summary["energy"] == pytest.approx(sent["energy"].sum(), rel=1e-12)
    assert run_row(history)["energy"] == history.summary["energy"]
    replay(history.directory)


def test_energy_counts_failed_tasks(devices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Trainer.train

    def fail_on_client_1(self: Trainer, task: Task, *data: Any) -> Update:
        if task.client == 1:
            raise ValueError("no power")
        return train(self, task, *data)

    monkeypatch.setattr(Trainer, "train", fail_on_client_1)
    history = run(
        Experiment(compute=str(devices), units="physical", method="fedavg", rounds=2, out=tmp_path / "run", **SMALL)
    )
    sent = history.events.query("kind == 'dispatch'").set_index("task")["energy"]
    failed = history.events.query("kind == 'drop'")["task"]
    assert sent[failed].sum() > 0
    assert history.summary["energy"] == pytest.approx(sent.sum(), rel=1e-12)
    replay(history.directory)


def test_a_run_without_watts_has_no_energy(tmp_path: Path) -> None:
    history = run(Experiment(updates=3, out=tmp_path / "run", **SMALL))
    assert "energy" not in history.events.columns
    assert "energy" not in history.summary
    assert "energy" not in run_row(history)


def test_replay_finds_a_changed_energy(devices: Path, tmp_path: Path) -> None:
    history = run(Experiment(compute=str(devices), units="physical", updates=3, out=tmp_path / "run", **SMALL))
    log = history.directory / "events.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0]["energy"] *= 2
    log.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    with pytest.raises(Inconsistent) as caught:
        replay(history.directory)
    assert caught.value.field.endswith("energy")


def test_an_interrupted_run_counts_the_same_energy(devices: Path, tmp_path: Path) -> None:
    links = tmp_path / "links.csv"
    links.write_text("client,end,downlink,uplink\n0,0.5,1e5,1e4\n0,2,1e3,1e6\n")
    fields: dict[str, Any] = {"compute": str(devices), "units": "physical", "links": links, "updates": 20}
    write_run(tmp_path / "whole", **fields)
    write_run(tmp_path / "cut", commits=9, checkpoint_every=4, **fields)
    fl.resume(tmp_path / "cut")
    whole, cut = (fl.History(tmp_path / name) for name in ("whole", "cut"))
    for column in ("energy", "t", "cost"):
        dispatched = [history.events.query("kind == 'dispatch'")[column].tolist() for history in (whole, cut)]
        assert dispatched[0] == dispatched[1]
    assert whole.summary["energy"] == cut.summary["energy"]
    replay(tmp_path / "cut")


def test_a_resumed_run_refuses_other_watts(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("compute\n1e7\n2e7\n3e7\n4e7\n")
    write_run(tmp_path / "cut", commits=4, checkpoint_every=2, compute=str(path), units="physical", updates=20)
    path.write_text("compute,watts_train\n1e7,1\n2e7,1\n3e7,1\n4e7,1\n")
    with refuses("run", "watts"):
        fl.resume(tmp_path / "cut")


@pytest.mark.parametrize("flags", [["--method", "fed-raa", "--updates", "9"], ["--method", "fedavg", "--rounds", "2"]])
def test_a_plan_shows_the_energy_of_the_run(
    flags: list[str], devices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--clients", "4", "--hidden", "8", "--local-steps", "2", "--compute", str(devices), *flags]
    assert main(["plan", "--units", "physical", *options]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("energy"))
    low, high = map(float, line.split()[1].split("–"))
    assert main(["run", "--units", "physical", *options, "--engine", "local", "--out", str(tmp_path / "run")]) == 0
    energy = fl.History(tmp_path / "run").events["energy"].dropna()
    assert low * 0.99 <= energy.min() <= energy.max() <= high * 1.01
    assert "energy" in capsys.readouterr().out


def test_a_plan_without_watts_shows_no_energy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--updates", "9"]) == 0
    assert "energy" not in capsys.readouterr().out


def test_energy_does_not_depend_on_the_speed_of_the_wall_clock(devices: Path) -> None:
    from fedraa.engine.factories import make_cost_model

    fields: dict[str, Any] = {"compute": str(devices), "units": "physical", "updates": 3, **SMALL}
    energies = []
    for clock in ({}, {"clock": "wall", "time_scale": 0.01}):
        spec = build_run(Experiment(**fields, **clock))
        costs = make_cost_model(spec)
        energies.append(costs.cost(spec.submodels[0].widths, 0, 1000, 1000, 0.0).energy)
    assert energies[0] == energies[1]
