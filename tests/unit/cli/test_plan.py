"""A plan predicts the run, and its tables have numbers that are computed by hand."""

import re
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from fedraa import Experiment, run
from fedraa.cli.main import main
from fedraa.cli.plan import show_plan
from fedraa.cli.plan_outlook import draw_sampled, sampled_outlook
from fedraa.cli.plan_rounds import draw_rounds, rounds_outlook
from fedraa.cli.plan_tasks import Totals
from fedraa.engine.build import build_run
from fedraa.messages import Mask, Update, Vector
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import RoundContext, RunContext, SubmodelPolicy, SubmodelSampler


class UpdateCounter(SubmodelSampler):
    """A sampler whose rounds end with at least one update."""

    def __init__(self, run: RunContext) -> None:
        self._whole = run.whole()
        self._updates = 0

    def draw(self, context: RoundContext) -> Assignment:
        return Assignment(0, self._whole)

    def receive(self, assignment: Assignment, update: Update, weight: float) -> None:
        self._updates += 1

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        assert self._updates > 0
        assert moved.any()
        self._updates = 0


class ClosesWithUpdates(SubmodelPolicy):
    """A custom policy with the sampler `UpdateCounter`."""

    def bind(self, run: RunContext) -> SubmodelSampler:
        return UpdateCounter(run)


def test_planned_first_round_has_the_costs_of_the_run(tmp_path: Path) -> None:
    experiment = Experiment(method="heterofl", rounds=1, clients=5, engine="local", local_steps=1, out=tmp_path / "run")
    events = run(experiment).events
    dispatched = events[events["kind"] == "dispatch"]
    [drawn], tasks = draw_rounds(build_run(experiment))
    assert drawn.costs.tolist() == dispatched["cost"].tolist()
    assert [task.cost for task in tasks] == dispatched["cost"].tolist()


def printed(capsys: pytest.CaptureFixture[str], flags: str) -> list[list[str]]:
    assert main(["plan", *flags.split()]) == 0
    return [line.split() for line in capsys.readouterr().out.split("\n") if line.strip()]


def test_plan_lists_the_owned_and_shared_parameters_of_fragments(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--hidden 200 --fragments 2 --updates 40")
    # The model has the widths 64, 200 and 10. 80 neurons own 80 * (64 + 1 + 10) parameters, and all fragments share the
    # 10 of the output bias.
    assert lines[0] == ["mlp:", "15010", "parameters,", "0", "of", "them", "never", "trained"]
    assert lines[3][:3] == ["0", "80", "6010"]
    assert lines[3][-2:] == ["6000", "10"]
    assert lines[4][:3] == ["1", "120", "9010"]
    # Each parameter has 4 bytes.
    assert lines[3][3:5] == ["24", "kB"]


def test_plan_counts_weights_between_fragments_as_never_trained(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--hidden 40 40 --fragments 4")
    # Of the 40 x 40 weights, only the blocks 4^2 + 8^2 + 12^2 + 16^2 = 480 are within a fragment.
    assert lines[0] == ["mlp:", "4650", "parameters,", "1120", "of", "them", "never", "trained"]


def test_plan_prints_the_delay_bound_and_the_expected_time(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--clients 9 --compute 1:1 --ratios 0.5 0.5 --duration-jitter 0 --updates 90")
    # Each of 9 clients has 159 or 160 of the 1437 samples, and trains half of the neurons.
    told = {words[0]: words for words in lines if words[0] in ("delay", "expected")}
    assert float(told["delay"][2]) == pytest.approx(0.5 * 160 * 9 / 1437, abs=1e-3)
    assert told["expected"][1:4] == ["90", "updates", "in"]
    # Each client trains ten times.
    assert float(told["expected"][5]) == pytest.approx(10 * 0.5, rel=0.01)


def test_rounds_take_as_long_as_their_slowest_client(capsys: pytest.CaptureFixture[str]) -> None:
    # Each client has 479 samples, and the slow client takes 1 / 0.5.
    lines = printed(capsys, "--method fedavg --clients 3 --compute 0.5:0.3333,2:0.6667 --rounds 4 --duration-jitter 0")
    assert lines[-2] == ["expected", "4", "rounds", "of", "2", "in", "time", "8"]


def test_plan_prints_the_traffic_and_the_energy_of_all_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text("compute,downlink,watts_train,watts_down\n" + "1e9,15010,0,2\n" * 4)
    flags = f"--method fedavg --clients 4 --hidden 200 --compute {devices} --units physical --rounds 3"
    [total] = [words for words in printed(capsys, flags) if words[:2] == ["in", "total"]]
    # Each of 3 rounds sends 15010 parameters of 4 bytes to 4 clients, in 4 s each, and receives as much.
    assert total[2:] == ["720", "kB", "down,", "720", "kB", "up,", f"{3 * 4 * 4 * 2}", "J"]


@pytest.mark.parametrize(
    "flags",
    [
        {"method": "fed-raa", "updates": 60},
        {"method": "fed-raa", "updates": 60, "concurrency": 3},
        {"method": "fedbuff", "buffer_size": 4, "updates": 9},
        {"method": "fedasync", "time": 3.0},
        {"method": "scaffold", "rounds": 2},
        {"method": "fedavg", "time": 5.0},
        # The capacities are drawn again in every round.
        {"method": "fedrolex", "rounds": 6},
        {"method": "heterofl", "time": 9.0, "override": {"submodel.capacities.redraw": True}},
        {
            "method": "bernoulli-kernels",
            "rounds": 3,
            "capacities": (1.0, 0.1),
            "override": {"submodel.capacities.redraw": True},
        },
        # In the first round, all clients train the whole model. Later they train half of it.
        {"method": "ra-fed", "rounds": 4},
        {"method": "ram-fed", "rounds": 4},
        # In the first rounds, only one client trains.
        {"method": "prunefl", "rounds": 7},
        {"method": "fed-raa-sync", "rounds": 5},
        {"method": "fedavg", "rounds": 5, "participation": "sample:2"},
        {"method": "fedavg", "rounds": 20, "participation": "poisson:0.1"},
        {"method": "fedavg", "rounds": 5, "polyak_fraction": 0.2},
        # The last rounds have fewer clients, because the others have had all of their tasks.
        {"method": "fedavg", "rounds": 60, "participation": "sample:3", "max_participations": 2},
        {"method": "fedavg", "rounds": 60, "participation": "poisson:0.1", "max_participations": 2},
        {"method": "fedavg", "rounds": 3, "submodel": f"{__name__}:ClosesWithUpdates"},
    ],
)
def test_planned_totals_equal_the_totals_of_the_run(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text("compute,downlink,watts_train,watts_down\n" + "1e6,1e6,5,2\n3e6,5e5,4,1\n" * 4)
    fields: dict[str, Any] = {"clients": 8, "compute": devices, "units": "physical", "local_steps": 1}
    fields |= {"engine": "local", "quiet": True}
    totals: list[Totals] = []
    monkeypatch.setattr("fedraa.cli.plan.describe_totals", lambda planned: totals.append(planned) or "")
    experiment = Experiment(**fields | flags)
    show_plan(experiment)
    summary = run(experiment.replace_fields({"out": tmp_path / "run"})).summary
    [planned] = totals
    assert (planned.down, planned.up) == (summary["bytes_down"], summary["bytes_up"])
    assert planned.energy == pytest.approx(summary["energy"], rel=1e-9)


def test_plan_of_rounds_with_a_deadline_prints_no_totals(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--method fedavg --rounds 3 --deadline 0.1")
    assert not [words for words in lines if words[:2] == ["in", "total"]]


def test_plan_of_rounds_with_a_deadline_counts_the_clients_that_meet_it(capsys: pytest.CaptureFixture[str]) -> None:
    # A task of one epoch costs 0.2 on a device of speed 1 and 0.067 on one of speed 3.
    for deadline, ready in (("0.05", "0"), ("0.1", "5"), ("0.3", "10")):
        lines = printed(capsys, f"--method fedavg --rounds 3 --local-epochs 1 --deadline {deadline}")
        assert f"in round 1: {ready} of 10" in " ".join(lines[-1])


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "rounds": 6, "max_participations": 2},
        {"method": "fedavg", "rounds": 9, "max_participations": 2, "participation": "round-robin:2"},
        {"method": "heterofl-async", "updates": 30, "max_participations": 2},
        {"method": "fed-raa", "updates": 30, "max_participations": 2},
    ],
    ids=lambda fields: f"{fields['method']}-{fields.get('participation')}",
)
def test_plan_counts_the_steps_up_to_the_last_participation(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = Experiment(clients=4, local_steps=1, hidden=(8,), engine="local", quiet=True, **fields)
    summary = run(experiment.replace_fields({"out": tmp_path / "run"})).summary
    show_plan(experiment)
    [expected] = re.findall(r"^expected +(\d+) ", capsys.readouterr().out, flags=re.MULTILINE)
    assert int(expected) == summary["steps"]


def test_plan_of_asynchronous_tasks_counts_the_downloads_that_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method salf-async --clients 5 --hidden 20 --local-steps 1 --updates 20"
    [total] = [words for words in printed(capsys, flags) if words[:2] == ["in", "total"]]
    # 20 tasks are applied. At the end, the 4 other clients have a task: 24 tasks of 1510 parameters of 4 bytes.
    assert total[2:4] == ["145", "kB"]


@pytest.mark.parametrize("method", ["fedrolex", "ra-fed"])
def test_plan_extrapolates_from_the_later_drawn_rounds(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedraa.cli.plan_tasks.MAX_ROUNDS", 40)
    fields: dict[str, Any] = {"method": method, "rounds": 200, "clients": 8, "local_steps": 1, "hidden": (8,)}
    experiment = Experiment(**fields, engine="local", quiet=True)
    spec = build_run(experiment)
    rounds, _ = draw_rounds(spec)
    assert len(rounds) == 40
    sentence, totals = rounds_outlook(spec, rounds)
    assert "rounds 21 to 40" in sentence
    summary = run(experiment.replace_fields({"out": tmp_path / "run"})).summary
    assert totals is not None
    assert totals.down == pytest.approx(summary["bytes_down"], rel=0.1)
    assert totals.up == pytest.approx(summary["bytes_up"], rel=0.1)
    time = float(sentence.split(" in time ")[1].split(",")[0])
    assert time == pytest.approx(summary["time"], rel=0.1)


@pytest.mark.parametrize("method", ["heterofl-async", "fedrolex-async", "fedgmr"])
def test_plan_counts_redrawn_asynchronous_submodels_by_their_mean(method: str, tmp_path: Path) -> None:
    redraw = {"submodel.capacities.redraw": True}
    fields: dict[str, Any] = {"method": method, "updates": 400, "clients": 4, "capacities": (1.0, 0.1)}
    fields |= {"override": redraw, "local_steps": 1, "hidden": (8,)}
    experiment = Experiment(**fields, engine="local", quiet=True)
    spec = build_run(experiment)
    _, totals = sampled_outlook(spec, draw_sampled(spec)[0])
    summary = run(experiment.replace_fields({"out": tmp_path / "run"})).summary
    assert totals.up == pytest.approx(summary["bytes_up"], rel=0.15)


def test_plan_prints_the_number_of_simulated_clients(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedraa.cli.plan_tasks.MAX_SIMULATED", 3)
    for flags in ("--method fedavg --rounds 4", "--method fed-raa-sync --rounds 4"):
        lines = printed(capsys, f"{flags} --clients 9")
        assert " 3 of the 9 clients" in " ".join(lines[-2])


def test_plan_counts_the_tasks_of_clients_that_are_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedraa.cli.plan_tasks.MAX_SIMULATED", 3)
    rounds, _ = draw_rounds(build_run(Experiment(method="fedavg", clients=9, max_participations=2, engine="local")))
    assert [part.total for part in rounds] == [9, 9]


def test_plan_of_more_rounds_than_it_draws_counts_all_tasks_of_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedraa.cli.plan_tasks.MAX_ROUNDS", 4)
    fields: dict[str, Any] = {"clients": 8, "rounds": 500, "participation": "sample:3", "max_participations": 40}
    spec = build_run(Experiment(method="fedavg", engine="local", **fields))
    sentence, totals = rounds_outlook(spec, draw_rounds(spec)[0])
    # 40 tasks of 8 clients take 106.7 rounds of 3 clients.
    assert sentence.startswith("107 rounds")
    assert totals is not None
    assert totals.down == pytest.approx(40 * 8 * 4 * spec.traced.size)


def test_plan_draws_few_rounds_of_all_clients_after_rounds_of_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedraa.cli.plan_tasks.MAX_SIMULATED", 12)
    rounds, _ = draw_rounds(build_run(Experiment(method="prunefl", clients=6, rounds=50, engine="local")))
    first = [part.total for part in rounds].index(6)
    assert [part.total for part in rounds] == [1] * first + [6]


def test_plan_of_rounds_that_never_have_clients_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--method", "fedavg", "--participation", "poisson:1e-12"]) == 2
    assert "participation: " in capsys.readouterr().err


def test_infeasible_delay_bound_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--delay-bound", "0.05"]) == 2
    assert "delay_bound: " in capsys.readouterr().err


@pytest.mark.parametrize(("method", "steps"), [("fed-raa", "--updates"), ("fedavg", "--rounds")])
def test_plan_of_devices_that_are_never_available_again_is_refused(
    method: str, steps: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = tmp_path / "spans.csv"
    spans.write_text("client,start,end\n0,0,1\n1,0,1\n")
    flags = ["plan", "--method", method, "--clients", "2", "--availability", str(spans)]
    assert main([*flags, steps, "100"]) == 2
    err = capsys.readouterr().err
    assert "availability: after " in err
    assert "--availability-period" in err
    assert main([*flags, "--time", "100"]) == 0
    assert main([*flags, steps, "100", "--availability-period", "2"]) == 0
    capsys.readouterr()
    assert main([*flags, "--target-accuracy", "0.5"]) == 0
    assert "after which no device is available again" in " ".join(capsys.readouterr().out.split())


def test_plan_notes_that_a_custom_scheduler_may_choose_differently(capsys: pytest.CaptureFixture[str]) -> None:
    blind = "a scheduler that uses losses will choose differently when the first losses are known"
    for scheduler, told in (("schedulers:GreRAA", True), ("gre-raa", False)):
        assert main(["plan", "--updates", "40", "--hidden", "8", "--scheduler", scheduler]) == 0
        assert (blind in " ".join(capsys.readouterr().out.split())) == told


@pytest.mark.parametrize(
    ("participation", "warns"), [("round-robin:2", False), ("available:2", False), ("oort:2", True)]
)
def test_plan_notes_only_that_a_selection_by_losses_may_choose_differently(
    participation: str, warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "the selection will choose other clients when the losses are known"
    lines = printed(capsys, f"--method fedavg --rounds 3 --participation {participation}")
    assert (note in " ".join(lines[-1] + lines[-2])) == warns


@pytest.mark.parametrize(
    ("limits", "warns"),
    [("--rounds 3 --deadline 0.1", True), ("--rounds 1 --deadline 0.1", False), ("--rounds 3", False)],
)
def test_plan_with_a_deadline_says_that_later_rounds_count_as_the_first(
    limits: str, warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, f"--method fedavg {limits}")
    assert ("later rounds are like round 1" in " ".join(lines[-1] + lines[-2])) == warns


def test_plan_of_rounds_counts_the_time_of_unavailable_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields: dict[str, Any] = {"method": "fedavg", "rounds": 12, "clients": 6, "hidden": (8,), "local_steps": 2}
    fields |= {"availability": "daily:0.3", "availability_period": 1.0, "engine": "local", "quiet": True}
    show_plan(Experiment(**fields))
    planned = float(re.findall(r"12 rounds of \S+ in time ([\d.]+)", capsys.readouterr().out)[0])
    time = float(run(Experiment(**fields, out=tmp_path / "run")).summary["time"])
    fields |= {"availability": None, "availability_period": None}
    always = float(run(Experiment(**fields, out=tmp_path / "always")).summary["time"])
    assert planned == pytest.approx(time, rel=0.25)
    assert time > 2 * always


def test_plan_refuses_its_own_options_before_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = Experiment(updates=10, engine="local")
    (tmp_path / "file").touch()
    with refuses("nodes", got=2):
        show_plan(experiment, nodes=2)
    with refuses("epsilon", got=1.0):
        show_plan(experiment, epsilon=1.0)
    with refuses("data", "File exists"):
        show_plan(experiment, tmp_path / "file")
    assert capsys.readouterr().out == ""
