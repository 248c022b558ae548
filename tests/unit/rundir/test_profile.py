"""The breakdown of a run's real time."""

import json
from pathlib import Path

import pytest
from refusals import refuses

from fedraa.api import run
from fedraa.cli.main import main
from fedraa.config.experiment import Experiment
from fedraa.rundir.profile import PROFILE, RunTimes, Stopwatch, read_profile


def test_profile_shares_are_fractions_of_the_wall_time(tmp_path: Path) -> None:
    server = {"wait": 6.0, "dispatch": 1.0, "mix": 2.0}
    measured = {"wall": 10.0, "count": 2, "server": server, "workers": {"train": 15.0, "evaluate": 1.0}}
    (tmp_path / PROFILE).write_text(json.dumps(measured))
    shares = {(who, what): share for who, what, _, share in read_profile(tmp_path)}
    assert shares["server", "waiting for the next update"] == 0.6
    # The server has 10 - 6 - 1 - 2 other seconds of 10. The workers train for 15 of 2 x 10 seconds.
    assert shares["server", "other"] == pytest.approx(0.1)
    assert shares["workers", "training"] == 0.75
    assert shares["workers", "other"] == pytest.approx(0.2)


def test_profile_of_a_run_sums_to_its_wall_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = run(Experiment(engine="local", hidden=(8,), clients=3, updates=9, local_steps=2, out=tmp_path / "run"))
    seconds = {(who, what): spent for who, what, spent, _ in read_profile(history.directory)}
    assert 0 < seconds["workers", "training"] <= seconds["server", "waiting for the next update"]
    assert seconds["workers", "evaluating"] > 0
    whole = json.loads((history.directory / PROFILE).read_text())["wall"]
    assert sum(spent for (who, _), spent in seconds.items() if who == "server") == pytest.approx(whole)
    assert main(["profile", str(history.directory)]) == 0
    assert "training" in capsys.readouterr().out


def test_unfinished_run_has_no_profile(tmp_path: Path) -> None:
    with refuses("run", str(tmp_path), PROFILE):
        read_profile(tmp_path)


def test_stopwatch_stops_on_errors() -> None:
    watch = Stopwatch()
    with pytest.raises(KeyError), watch.on("work"):
        raise KeyError
    assert watch.seconds["work"] > 0


def test_run_times_after_restore_continue() -> None:
    times, resumed = RunTimes(), RunTimes()
    times.server.seconds["wait"] = 2.0
    times.workers.seconds["train"] = 3.0
    resumed.restore(times.state())
    resumed.workers.seconds["train"] += 0.5
    assert (dict(resumed.server.seconds), dict(resumed.workers.seconds)) == ({"wait": 2.0}, {"train": 3.5})
