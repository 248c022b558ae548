"""Tuning: equal trials for each method, reproducible by the seed, continued after a kill, on validation data only."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.callbacks.events import Limits
from fedraa.cli.main import main
from fedraa.settings.terms import on_terms
from fedraa.settings.tuned import read_tuned
from fedraa.tuning import attempt, tuner, work
from fedraa.tuning.attempt import Attempt, tenths_passed
from fedraa.tuning.journal import Journal, Trial
from fedraa.tuning.space import Range
from fedraa.tuning.suggest import Judge, best_of, suggest_values, trial_merit

SMALL = {"clients": 2, "hidden": (4,), "local_steps": 2, "rounds": 2, "engine": "local"}


def fake(asked: Attempt) -> Trial:
    """Return a trial whose metric is best at lr .3, and for fedsam at radius .1. The trial of one rate fails."""
    if asked.values["lr"] > 5:
        return Trial(asked.method, asked.number, asked.values, "failed", why="too much")
    value = -abs(np.log(asked.values["lr"] / 0.3)) - abs(asked.values.get("local.sam_rho", 0.1) - 0.1)
    return Trial(asked.method, asked.number, asked.values, "done", float(value), {"5": float(value)})


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> list[Attempt]:
    attempts: list[Attempt] = []
    monkeypatch.setattr(work, "run_attempt", lambda asked: attempts.append(asked) or fake(asked))
    return attempts


def tuned(out: Path, **more: object) -> tuner.Tuned:
    arguments = (
        {"methods": ["fedavg", "fedprox"], "space": {"lr": "0.01:0.1:log"}, "trials": 9, "out": out} | SMALL | more
    )
    # The tests pass values of wrong types on purpose.
    return fl.tune(**arguments)  # type: ignore[arg-type]


def test_methods_have_equal_trials_and_spaces_are_widened_once(faked: list[Attempt], tmp_path: Path) -> None:
    """The best rate .3 is above the range. For the last third of the trials the upper end is .1 * 10^.5 = .316."""
    result = tuned(tmp_path / "tune", workers=2)
    assert result.table.groupby("method").size().to_dict() == {"fedavg": 9, "fedprox": 9}
    assert [planned.number for planned in faked] == sorted([*range(9)] * 2)
    before = [planned.values["lr"] for planned in faked if planned.number < 6]
    after = [planned.values["lr"] for planned in faked if planned.number >= 6]
    assert max(before) <= 0.1
    assert 0.1 < max(after) <= 0.316
    assert {planned.experiment.validation for planned in faked} == {0.1}
    assert {(planned.experiment.engine, planned.experiment.workers) for planned in faked} == {("local", None)}
    text = result.file.read_text()
    assert 'widened = ["lr"]' in text
    assert result.terms["fedavg"]["lr"] > 0.1


def test_follow_adds_fields_to_a_trial(faked: list[Attempt], tmp_path: Path) -> None:
    result = tuned(tmp_path / "tune", follow=lambda values: {"eval_every": 1 if values["lr"] < 0.03 else 2})
    assert {planned.experiment.eval_every for planned in faked if planned.values["lr"] < 0.03} == {1}
    assert {planned.experiment.eval_every for planned in faked if planned.values["lr"] >= 0.03} == {2}
    assert result.terms["fedavg"].keys() == {"lr"}


def test_space_of_texts_is_widened_only_if_the_method_can_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last texts are best. auto:8 follows auto:4, and nothing follows topk:1, because a share is at most 1."""

    def fake(asked: Attempt) -> Trial:
        value = float(str(asked.values["local_steps"]).split(":")[1]) + float(str(asked.values["compress"])[5:])
        return Trial(asked.method, asked.number, asked.values, "done", value, {"5": value})

    monkeypatch.setattr(work, "run_attempt", fake)
    space = {"local_steps": "auto:2,auto:4", "compress": "topk:0.5,topk:1"}
    small = {"clients": 2, "hidden": (4,), "updates": 2}
    result = fl.tune(["fed-quilt"], space, trials=9, out=tmp_path / "tune", **small)
    assert 'widened = ["local_steps"]' in result.file.read_text()
    assert result.terms["fed-quilt"] == {"local_steps": "auto:8", "compress": "topk:1"}


def test_same_seed_gives_the_same_result_after_a_kill(
    faked: list[Attempt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuned(tmp_path / "whole")
    values = [(planned.method, planned.number, dict(planned.values)) for planned in faked]
    # The process is killed when the next line is half written.
    for line in (3, 7, 13):
        out = tmp_path / f"killed-{line}"
        monkeypatch.setattr(work, "run_attempt", lambda asked: fake(asked) if asked else None)
        lines = (tmp_path / "whole" / "trials.jsonl").read_text().splitlines(keepends=True)
        out.mkdir()
        (out / "tune.json").write_text((tmp_path / "whole" / "tune.json").read_text())
        (out / "trials.jsonl").write_text("".join(lines[:line]) + lines[line][:20])
        again = tuned(out)
        assert again.file.read_text() == whole.file.read_text()
        kept = [json.loads(text) for text in (out / "trials.jsonl").read_text().splitlines()]
        assert [(planned["method"], planned["number"], planned["values"]) for planned in kept] == values
    other = tuned(tmp_path / "other", seed=1)
    assert other.terms != whole.terms


def test_finished_tuning_runs_no_trial(faked: list[Attempt], tmp_path: Path) -> None:
    tuned(tmp_path / "tune")
    count = len(faked)
    assert tuned(tmp_path / "tune").terms
    assert len(faked) == count


def test_field_is_tuned_for_the_methods_that_have_it(faked: list[Attempt], tmp_path: Path) -> None:
    more = {"rounds": None, "time": 1.0, "space": ["lr=0.1:1:log", "mixing=0.3,0.5"]}
    result = tuned(tmp_path / "tune", methods=["fedavg", "fedasync"], **more)
    assert {method: set(terms) for method, terms in result.terms.items()} == {
        "fedavg": {"lr"},
        "fedasync": {"lr", "mixing"},
    }


def test_a_path_is_tuned_for_the_methods_that_have_it(faked: list[Attempt], tmp_path: Path) -> None:
    space = ["lr=0.1,0.3", "update.participation_correction=0:1"]
    result = fl.tune(["fedasync", "fedavg"], space, trials=3, out=tmp_path, **SMALL | {"rounds": None, "time": 1.0})
    power = result.terms["fedasync"]["update.participation_correction"]
    assert 0 < float(str(power)) < 1, "a number with fractions, although the ends of the range are whole"
    assert "update.participation_correction" not in result.terms["fedavg"]
    assert all(
        one.experiment.override == {"update.participation_correction": one.values["update.participation_correction"]}
        for one in faked[::2]
    )
    assert read_tuned(result.file) == {name: dict(terms) for name, terms in result.terms.items()}
    assert tuned_override(result.file) == {"update.participation_correction": power}


def tuned_override(file: Path) -> object:
    """Return the override of fedasync on tuned terms."""
    experiment = fl.Experiment(method="fedasync")
    return on_terms(experiment, "tuned", read_tuned(file)).override


def test_equal_values_of_a_small_space_are_run_once(faked: list[Attempt], tmp_path: Path) -> None:
    """Three rates and one from the wider space are four runs for nine trials."""
    result = tuned(tmp_path / "tune", methods=["fedavg"], space={"lr": [0.01, 0.03, 0.1]})
    assert len(result.table) == 9
    assert len(faked) <= 4
    assert len({planned.values["lr"] for planned in faked}) == len(faked)


def test_a_value_at_the_edge_is_marked(
    faked: list[Attempt], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tuned(tmp_path / "tune", space={"lr": [0.001, 0.002]})
    assert result.at_edge == {"fedavg": ("lr",), "fedprox": ("lr",)}
    # The space was widened by this value.
    assert result.terms["fedavg"]["lr"] == 0.004
    flags = "--space lr=0.001,0.002 --trials 9 --clients 2 --hidden 4 --local-steps 2 --rounds 2 --engine local"
    assert main(["tune", "fedavg", "fedprox", *flags.split(), "--out", str(tmp_path / "my tune")]) == 0
    shown = capsys.readouterr().out
    assert "lr=0.004*" in shown
    file = tmp_path / "my tune" / "tuned.toml"
    command = shlex.split(shown.rpartition(": fedraa ")[2])
    options = "--seeds 1 2 3 --hidden 4 --clients 2 --local-steps 2 --rounds 2 --engine local"
    assert command == ["compare", "fedavg", "fedprox", "--terms", "tuned", "--tuned", str(file), *options.split()]
    assert main(["tune", "fedavg", *flags.split(), "--out", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"trial 2 of 9: fedavg .*lr=0\.00\d: -\d.* 0:00:0\d ", shown)


def test_value_at_the_edge_without_further_trials_is_marked(faked: list[Attempt], tmp_path: Path) -> None:
    result = tuned(tmp_path / "tune", space={"lr": [0.001, 0.002]}, trials=2)
    assert result.terms["fedavg"] == {"lr": 0.002}
    assert result.at_edge == {"fedavg": ("lr",), "fedprox": ("lr",)}
    assert "widened = []" in result.file.read_text()


def test_value_at_the_edge_is_marked_if_no_trial_tried_the_wider_space(
    faked: list[Attempt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = (0.001, 0.002, 0.001)
    monkeypatch.setattr(
        "fedraa.tuning.tuner.suggest_values", lambda space, ended, seed, number, better: {"lr": rates[number]}
    )
    result = tuned(tmp_path / "tune", space={"lr": [0.001, 0.002]}, trials=3)
    assert result.terms["fedavg"] == {"lr": 0.002}
    assert result.at_edge == {"fedavg": ("lr",), "fedprox": ("lr",)}


def test_trials_without_an_update_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--space lr=0.1,0.2 --trials 1 --clients 2 --hidden 4 --time 0.0001 --engine local"
    assert main(["tune", "fedavg", *flags.split(), "--out", str(tmp_path / "tune")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "untrained: " in shown
    assert "fedavg: 1 trial ended before" in shown


def test_directory_with_a_damaged_plan_is_refused(faked: list[Attempt], tmp_path: Path) -> None:
    tuned(tmp_path / "tune")
    (tmp_path / "tune" / "tune.json").write_text("{")
    with refuses("out", str(tmp_path / "tune")):
        tuned(tmp_path / "tune")


def test_range_is_not_widened_beyond_the_allowed_values() -> None:
    """Momentum 0 is the smallest possible momentum."""
    plan = tuner._Plan.of(("fedavg",), {"momentum": Range(0.0, 0.5)}, 3, fl.Experiment(**SMALL))
    assert plan.widen_parameter("fedavg", "momentum", Range(0.0, 0.5), 0.0) is None
    assert plan.widen_parameter("fedavg", "momentum", Range(0.0, 0.5), 0.5) == Range(0.0, 0.75)
    assert plan.widen_parameter("fedavg", "momentum", Range(0.0, 0.5), 0.25) is None


def test_method_with_only_failed_trials_is_refused(faked: list[Attempt], tmp_path: Path) -> None:
    with refuses("fedavg", "too much"):
        tuned(tmp_path / "tune", space={"lr": [10.0, 20.0]})


@pytest.mark.parametrize(
    ("more", "pattern"),
    [
        ({"methods": []}, "^methods: "),
        ({"methods": ["fedmagic"]}, "^method: .*'fedmagic'"),
        ({"trials": 0}, "^trials: .*0"),
        ({"trials": 2**62}, "^trials: .*1000000"),
        ({"jobs": 1.5}, "^jobs: .*1.5"),
        ({"space": {"mixing": "0.1:0.9"}}, "^space: mixing .*fedavg, fedprox"),
        ({"space": {"momentum": [0.5, 1.5]}}, "^momentum: .*1.5"),
        ({"lr": 0.3}, "^lr: .*0.3"),
        ({"methods": ["scaffold"], "space": {"momentum": [0.0, 0.5]}}, "^momentum: .*0.5.*scaffold"),
        (
            {"methods": ["fedavg", "fed-raa"], "rounds": None, "space": {"mixing": [0.5, 0.6]}},
            "^space: fedavg .*mixing",
        ),
        ({"rrounds": 3}, "^rrounds: .* rounds[?]"),
    ],
)
def test_impossible_tuning_is_refused_before_anything_is_written(
    more: dict[str, object], pattern: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=pattern):
        tuned(tmp_path / "tune", **more)
    assert not (tmp_path / "tune").exists()


def test_tuning_of_a_changed_method_is_not_continued(faked: list[Attempt], tmp_path: Path) -> None:
    """The defaults of a method may have changed, although no field of the experiment has."""
    tuned(tmp_path / "tune")
    plan = tmp_path / "tune" / "tune.json"
    described = json.loads(plan.read_text())
    assert described["methods"]["fedavg"]["local"]["momentum"] == 0.5
    described["methods"]["fedavg"]["local"]["momentum"] = 0.4
    plan.write_text(json.dumps(described))
    with refuses("out", str(tmp_path / "tune")):
        tuned(tmp_path / "tune")


def test_tuning_continues_with_another_spelling_of_the_data_folder(faked: list[Attempt], tmp_path: Path) -> None:
    table = "benchmarks.studies.race.generated_tables:rare"
    tuned(tmp_path / "tune", dataset=table, data_dir=tmp_path)
    trials = len(faked)
    assert trials > 0
    tuned(tmp_path / "tune", dataset=table, data_dir=tmp_path / ".." / tmp_path.name, quiet=True)
    assert len(faked) == trials
    with refuses("out", str(tmp_path / "tune")):
        tuned(tmp_path / "tune", dataset=table, data_dir=tmp_path, rounds=3)
    (tmp_path / "other").mkdir()
    with refuses("out", str(tmp_path / "tune")):
        tuned(tmp_path / "tune", dataset=table, data_dir=tmp_path / "other")


def test_directory_of_another_tuning_is_refused(faked: list[Attempt], tmp_path: Path) -> None:
    tuned(tmp_path / "tune", trials=1)
    with refuses("out", str(tmp_path / "tune")):
        tuned(tmp_path / "tune", trials=2)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").touch()
    with refuses("out", str(tmp_path / "used")):
        tuned(tmp_path / "used")
    with (
        tuner.tuning_folder(tmp_path / "now", {"a": 1}),
        refuses("out", str(tmp_path / "now"), "tuning"),
        tuner.tuning_folder(tmp_path / "now", {"a": 1}),
    ):
        pass


def test_trial_uses_validation_data_and_keeps_only_its_metrics(tmp_path: Path) -> None:
    """All labels of the test data are wrong, so that the accuracy on test data would be 0 %."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez(tmp_path / "d.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=1 - y[300:])
    flags = {"dataset": str(tmp_path / "d.npz"), "rounds": 6, "local_steps": 20}
    result = tuned(tmp_path / "tune", methods=["fedavg"], space={"lr": [0.1, 0.5]}, trials=2, **flags)
    assert result.table["accuracy"].min() > 0.8
    assert sorted(path.name for path in (tmp_path / "tune").iterdir()) == [
        "lock",
        "trials.jsonl",
        "tune.json",
        "tuned.toml",
    ]


def test_tuning_of_an_error_prefers_smaller_values(tmp_path: Path) -> None:
    """A rate without effect has the larger error. A rate that diverges has no finite error, and its trial fails."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32)
    path = tmp_path / "lines.npz"
    np.savez(path, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    flags = {"dataset": str(path), "objective": "regression", "local_steps": 20, "on_bad_client": "stop"}
    result = tuned(tmp_path / "tune", methods=["fedavg"], space={"lr": [1e-4, 0.05, 1e9]}, trials=3, **flags)
    assert result.terms == {"fedavg": {"lr": 0.05}}
    assert list(result.table.columns) == ["method", "trial", "state", "mse", "lr"]
    states = dict(zip(result.table["lr"], result.table["state"], strict=True))
    assert states[1e9] == "failed"
    assert 'better = "min"' in result.file.read_text()


def test_trial_below_the_median_should_stop_from_three_tenths() -> None:
    ended = [
        Trial("m", n, {}, "done", v, {str(t): v for t in range(1, 10)}) for n, v in enumerate((0.5, 0.6, 0.7, 0.8))
    ]
    judge = Judge(ended, "max")
    # The median is .65.
    assert [judge.should_stop(tenth, 0.64) for tenth in (1, 2, 3)] == [False, False, True]
    assert not Judge(ended, "max").should_stop(3, 0.66)
    assert Judge(ended, "min").should_stop(3, 0.66)
    # Three finished trials are too few.
    assert not Judge(ended[:3], "max").should_stop(3, 0.1)


def test_tenths_passed_counts_the_nearest_limit() -> None:
    assert tenths_passed(Limits(10, None, None), 3, 0.0) == 3
    assert tenths_passed(Limits(10, 2.0, None), 3, 1.0) == 5
    assert tenths_passed(Limits(None, 0.7, None), 3, 0.49) == 7


def test_trial_below_the_median_ends_early(tmp_path: Path) -> None:
    ended = tuple(Trial("m", n, {}, "done", 1.0, {str(t): 1.0 for t in range(1, 10)}) for n in range(4))
    experiment = fl.Experiment(
        method="fedavg", validation=0.1, out=tmp_path / "r", quiet=True, **SMALL | {"rounds": 10}
    )
    trial = attempt.run_attempt(Attempt("m", 4, {"lr": 0.05}, experiment, ended, "max"))
    assert (trial.state, trial.value, list(trial.curve)) == ("stopped", None, ["1", "2", "3"])
    assert not (tmp_path / "r").exists()


def test_suggestion_is_a_function_of_the_seed_and_the_trials() -> None:
    space = {"lr": Range(0.01, 1.0, log=True)}
    ended = [Trial("m", n, {"lr": lr}, "done", -abs(lr - 0.5)) for n, lr in enumerate((0.02, 0.1, 0.4, 0.6, 0.9, 0.45))]
    assert suggest_values(space, ended, 0, 6, "max") == suggest_values(space, ended, 0, 6, "max")
    assert suggest_values(space, ended, 0, 6, "max") != suggest_values(space, ended, 1, 6, "max")
    failed = [
        *ended,
        Trial("m", 6, {"lr": 0.3}, "failed", why="x"),
        Trial("m", 7, {"lr": 0.2}, "stopped", curve={"1": 0.1}),
    ]
    assert 0.01 <= suggest_values(space, failed, 0, 8, "max")["lr"] <= 1


@pytest.mark.parametrize("seed", range(5))
def test_suggestions_for_an_error_equal_those_for_its_negative_as_a_score(seed: int) -> None:
    """Without a finished trial, Optuna ranks the failed trials by the last values of their curves."""
    space = {"lr": Range(0.01, 1, log=True)}
    rates = (0.01, 0.02, 0.05, 0.2, 0.5, 1.0)
    errors = [Trial("fedavg", i, {"lr": lr}, "failed", curve={"3": lr}) for i, lr in enumerate(rates)]
    scores = [replace(trial, curve={"3": -trial.curve["3"]}) for trial in errors]
    assert suggest_values(space, errors, seed, 6, "min") == suggest_values(space, scores, seed, 6, "max")


def test_best_trial_is_the_best_finished_trial() -> None:
    trials = [Trial("m", n, {"lr": n}, "done", v) for n, v in enumerate((0.5, 0.9, 0.9, 0.2))]
    trials += [replace(trials[0], number=4, state="stopped", value=None)]
    assert best_of(trials, "max") == trials[1]
    assert best_of(trials, "min") == trials[3]
    assert best_of(trials[4:], "max") is None


def test_best_trial_with_a_target_reaches_it_first() -> None:
    """The target is .97. A trial with .99 at time 3 is behind a trial with .97 at time 2; .96 misses the target."""
    ends = ((0.96, None), (0.99, 3.0), (0.97, 2.0), (0.965, None))
    trials = [Trial("m", n, {"lr": 0.1 * n}, "done", value, {}, reached=at) for n, (value, at) in enumerate(ends)]
    assert best_of(trials, "max") == trials[2]
    assert sorted(trials, key=lambda trial: trial_merit(trial, "max")) == [trials[n] for n in (0, 3, 1, 2)]


def test_trial_ends_at_its_target_and_records_the_time(tmp_path: Path) -> None:
    arguments = SMALL | {"rounds": 10, "target_accuracy": 0.01}
    experiment = fl.Experiment(method="fedavg", validation=0.1, out=tmp_path / "r", quiet=True, **arguments)
    trial = attempt.run_attempt(Attempt("m", 0, {"lr": 0.05}, experiment, (), "max"))
    assert trial.state == "done"
    assert trial.reached is not None
    assert set(trial.curve.values()) == {trial.value}
    assert list(trial.curve) == [str(tenth) for tenth in range(1, 10)]


def test_torn_line_of_the_journal_is_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add(Trial("m", 0, {"lr": 0.1, "ratios": (0.4, 0.6)}, "done", 0.5))
    with (tmp_path / "trials.jsonl").open("a") as stream:
        stream.write('{"method": "m", "num')
    again = Journal(tmp_path)
    assert again.trials == journal.trials
    again.add(Trial("m", 1, {"lr": 0.2}, "done", 0.6))
    assert [trial.number for trial in Journal(tmp_path).of("m")] == [0, 1]


@pytest.mark.slow
def test_trials_in_two_processes_are_complete(tmp_path: Path) -> None:
    result = tuned(tmp_path / "tune", jobs=2, trials=3)
    assert result.table.groupby("method").size().to_dict() == {"fedavg": 3, "fedprox": 3}
