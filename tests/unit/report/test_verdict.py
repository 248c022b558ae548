"""The paragraphs of a report: the leader, noise, differences in the logs, and a run compared with its plan."""

from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

import fedraa
from fedraa import Experiment
from fedraa.report.outlook import compare_with_plan, forecast_run
from fedraa.report.runs import Group, Run, _describe_states, load_groups
from fedraa.report.tables import make_method_table, table_metrics
from fedraa.report.verdict import (
    Ranking,
    _describe_weakness,
    describe_comparison,
    describe_differences,
    still_improves,
    value_at,
)

FLAGS = {"engine": "local", "clients": 4, "hidden": (8,), "local_steps": 1, "quiet": True}


class Broken(Exception):
    pass


class Breaks(fedraa.Callback):
    def on_eval(self, step: int, t: float, metrics: object) -> None:
        if step >= 8:
            raise Broken


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two seeds of an asynchronous method and of a method in rounds, and an interrupted run."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fed-raa", "ist"):
        for seed in (0, 1):
            out = folder / "all" / f"{method}-{seed}"
            fedraa.run(Experiment(method=method, seed=seed, time=0.1, out=out, **FLAGS))
    with pytest.raises(Broken):
        fedraa.run(Experiment(updates=60, out=folder / "broken", **FLAGS), callbacks=[Breaks()])
    return folder


def faked(groups: list[Group], values: dict[str, tuple[float, ...]], *, by_time: bool = False) -> Ranking:
    named = {group.label: group for group in groups}
    return Ranking(tuple(named[label] for label in values), tuple(values.values()), by_time, 0.5)


def test_in_words_names_the_leader_and_the_significance(runs: Path) -> None:
    groups = load_groups([runs / "all"])
    # Two pairs of equal spread: t = 0.4 / sqrt(0.0002), two degrees of freedom, p = 1 - t / sqrt(t² + 2) = 0.0012.
    text = faked(groups, {"ist": (0.8, 0.82), "fed-raa": (0.4, 0.42)}).in_words()
    assert text == (
        "ist is ahead at time 0.5: accuracy 0.8100, 0.4000 more than fed-raa (0.4100). "
        "The difference is beyond noise (Welch's t-test over the seeds, p = 0.0012)."
    )
    level = faked(groups, {"ist": (0.4, 0.8), "fed-raa": (0.3, 0.7)}).in_words()
    assert level.startswith(
        "ist and fed-raa do not differ significantly at time 0.5: accuracy 0.6000 and 0.5000. The difference is"
    )
    assert "A single seed does not show" in faked(groups, {"ist": (0.8,), "fed-raa": (0.3, 0.7)}).in_words()
    assert "have the same accuracy" in faked(groups, {"ist": (0.5, 0.5), "fed-raa": (0.5, 0.5)}).in_words()
    assert "of fed-raa is not finite" in faked(groups, {"ist": (0.5, 0.5), "fed-raa": (0.5, float("nan"))}).in_words()
    first = faked(groups, {"ist": (2.0, 2.2), "fed-raa": (4.2, 4.2)}, by_time=True).in_words()
    assert first.startswith("ist reached the target first, at time 2.1; fed-raa took 2.00 times that time.")
    at_start = faked(groups, {"ist": (0.0,), "fed-raa": (4.2,)}, by_time=True).in_words()
    assert at_start.startswith("ist reached the target at time 0; fed-raa at time 4.2.")
    both = faked(groups, {"ist": (0.0,), "fed-raa": (0.0,)}, by_time=True).in_words()
    assert both == "ist and fed-raa reached the target at the same time, 0."
    only = faked(groups, {"ist": (2.0,), "fed-raa": ()}, by_time=True).in_words()
    assert only == "Only ist reached the target with every seed, at time 2."


def test_ranking_uses_values_at_the_last_common_time(runs: Path) -> None:
    groups = load_groups([runs / "all"])
    ranking = Ranking.of(groups)
    assert ranking.at == min(run.end for group in groups for run in group.runs)
    for group, values in zip(ranking.groups, ranking.values, strict=True):
        assert values == tuple(value_at(run, ranking.at) for run in group.runs)
    means = [sum(values) / len(values) for values in ranking.values]
    assert means == sorted(means, reverse=True)
    run = groups[0].first
    assert value_at(run, 0.0) == run.evals["accuracy"].iloc[0]
    assert value_at(run, None) == run.summary["accuracy"]


def test_ranking_of_runs_with_different_clocks_is_by_metric(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = load_groups([runs / "all"])
    for run in groups[0].runs:
        monkeypatch.setitem(run.summary, "time_to_target", 0.05)
    assert Ranking.of(groups).by_time
    for run in groups[0].runs:
        monkeypatch.setitem(run.config["experiment"], "clock", "wall")
    ranking = Ranking.of(groups)
    assert (ranking.by_time, ranking.at) == (False, None)
    for group, values in zip(ranking.groups, ranking.values, strict=True):
        assert values == tuple(run.summary["accuracy"] for run in group.runs)


def test_ranking_of_runs_with_different_targets_is_by_metric(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = load_groups([runs / "all"])
    for run in groups[0].runs:
        monkeypatch.setitem(run.summary, "time_to_target", 0.05)
        monkeypatch.setitem(run.config["experiment"], "target_accuracy", 0.1)
    ranking = Ranking.of(groups)
    assert (ranking.by_time, ranking.at) == (False, 0.1)
    [table] = [make_method_table(groups, table_metrics(groups, {}))]
    assert "different targets" in table.note


def test_weakness_is_measured_at_the_time_of_the_comparison(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = load_groups([runs / "all"])
    for group, losses in ((first, (0.5, 0.4)), (second, (0.6, 0.1))):
        for run in group.runs:
            early = run.evals.iloc[[0, 0]].assign(loss=losses, client_worst=0.5, t=(0.0, 9.0))
            monkeypatch.setattr(run, "evals", early)
    # At time 1 the loss of the first group is 0.5, and that of the second is 0.6. Only at time 9 it is larger.
    at_end = Ranking((first, second), ((0.8,), (0.7,)), by_time=False, at=None)
    assert _describe_weakness(at_end).endswith(f"its loss is 0.4 (with {second.label}: 0.1).")
    assert _describe_weakness(Ranking((first, second), ((0.8,), (0.7,)), by_time=False, at=1.0)) == ""


def test_weakness_is_not_the_worst_if_another_method_diverged(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [group for _ in range(2) for group in load_groups([runs / "all"])][:3]
    for group, loss in zip(groups, (0.6, 0.5, float("nan")), strict=True):
        for run in group.runs:
            monkeypatch.setattr(run, "evals", run.evals.assign(loss=loss, client_worst=0.5))
    text = _describe_weakness(Ranking(tuple(groups), ((0.8,), (0.7,), (0.6,)), by_time=False, at=None))
    assert text.endswith(f"its loss is 0.6 (with {groups[1].label}: 0.5).")


def test_asynchronous_runs_have_no_untrained_share_of_rounds(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {group.label: group for group in load_groups([runs / "all"])}
    for run in groups["ist"].runs:
        monkeypatch.setattr(run, "rounds", run.rounds.assign(uncovered=run.config["resolved"]["parameters"] / 4))
    notes = describe_differences(groups["ist"], groups["fed-raa"])
    assert "a round left on average 25% of the parameters untrained" in notes
    assert not any("untrained" in note for note in describe_differences(groups["fed-raa"], groups["ist"]))


def test_rates_of_different_clocks_are_not_compared(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = load_groups([runs / "all"])
    for run in first.runs:
        monkeypatch.setitem(run.summary, "flops", 1e30)
    assert any("FLOPs" in note for note in describe_differences(first, second))
    for run in first.runs:
        monkeypatch.setitem(run.config["experiment"], "clock", "wall")
    assert not any("FLOPs" in note for note in describe_differences(first, second))


def test_runs_with_different_data_are_said_to_show_no_better_method(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = load_groups([runs / "all"])
    assert "different data" not in " ".join(describe_comparison(groups))
    for option, value in (("dataset", "mnist"), ("validation", 0.2)):
        with monkeypatch.context() as patch:
            patch.setitem(groups[0].first.config["experiment"], option, value)
            (text,) = describe_comparison(groups)
        assert "different data or tasks" in text


def test_different_default_rates_are_not_called_the_same(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = load_groups([runs / "all"])
    assert "because all methods have the same one" in describe_comparison(groups)[-1]
    for run in groups[0].runs:
        monkeypatch.setitem(run.config["method"]["local"], "lr", 0.2)
    assert "because all methods have the same one" not in describe_comparison(groups)[-1]


def test_verdict_of_two_methods_describes_their_differences(runs: Path) -> None:
    text = " ".join(describe_comparison(load_groups([runs / "all"])))
    idle = {group.label: sum(run.idle_fraction for run in group.runs) / 2 for group in load_groups([runs / "all"])}
    assert (
        f"no task for {max(idle.values()):.0%} of the time" in text
        or f"for {max(idle.values()):.0%};" in text
        or f"for {max(idle.values()):.0%}." in text
    )
    assert "learning rate" in text
    assert describe_comparison(load_groups([runs / "all" / "ist-0"])) == []


def test_outlook_compares_a_run_with_its_forecast(runs: Path) -> None:
    run = Run(runs / "all" / "fed-raa-0")
    predicted = forecast_run(run)
    assert predicted is not None
    # The virtual clock has the same random draws as the forecast.
    assert predicted.time == pytest.approx(run.tasks.loc[run.tasks["done"], "end"].max())
    assert predicted.staleness_mean == pytest.approx(run.summary["staleness_mean"])
    text = compare_with_plan(run)
    assert text.startswith("Ended by time at time 0.1 after ")
    assert "It took the predicted time; the staleness was " in text
    assert "as predicted." in text
    assert "the delay bound is " in text
    assert "No client waited." in text
    rounds = compare_with_plan(Run(runs / "all" / "ist-0"))
    assert "Its tasks took the time that their costs predict." in rounds
    assert "in rounds the fast clients wait for the slow ones" in rounds


def test_outlook_of_sampled_rounds_names_the_clients_that_are_in_no_round(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"method": "fedavg", "rounds": 3, "compute": "1:1", "duration_jitter": 0.0, **FLAGS}
    fedraa.run(Experiment(participation="sample:1", out=tmp_path / "run", **fields))
    # One of four equal devices trains at a time, so three quarters of the clients' time have no task.
    expected = "no task for 75% of the time: a round has only some of the clients"
    assert expected in compare_with_plan(Run(tmp_path / "run"))


@pytest.mark.parametrize("method", ["ringleader", "fedbuff", "asyncfeded"])
def test_forecast_of_a_buffering_rule_equals_the_run(method: str, tmp_path: Path) -> None:
    flags: dict[str, Any] = {"buffer_size": 3} if method == "fedbuff" else {}
    out = tmp_path / "run"
    summary = fedraa.run(Experiment(method=method, updates=12, out=out, **FLAGS, **flags)).summary
    predicted = forecast_run(Run(out))
    assert predicted is not None
    assert predicted.time == pytest.approx(summary["time"])
    assert (sum(predicted.tasks), predicted.staleness_max) == (summary["tasks"], summary["staleness_max"])


def test_unfinished_run_is_shown_and_marked(runs: Path) -> None:
    run = Run(runs / "broken")
    assert not run.ended
    assert run.summary["reason"] == "interrupted"
    assert run.summary["tasks"] == run.tasks["done"].sum() >= 8
    assert run.summary["accuracy"] == run.evals["accuracy"].iloc[-1]
    assert f"Not ended: interrupted at time {run.end:.4g} after " in compare_with_plan(run)
    assert f"To continue: fedraa resume {run.directory}." in compare_with_plan(run)
    groups = load_groups([runs / "broken", runs / "all" / "ist-0"])
    assert [group.label for group in groups] == ["fed-raa (interrupted)", "ist"]
    assert f"Not ended, and shown until their last evaluation: {run.directory}" in describe_comparison(groups)[-1]
    ended = Run(runs / "all" / "fed-raa-0")
    assert _describe_states([ended, run, run]) == " (interrupted in 2 of 3)"
    assert _describe_states([ended]) == ""
    with (runs / "broken" / "events.jsonl").open("a") as stream:
        # The last line is incomplete, as in a log that a process is writing.
        stream.write('{"seq": 99')
    assert Run(runs / "broken").summary == run.summary


def test_run_without_evaluation_is_refused(runs: Path, tmp_path: Path) -> None:
    for name in ("config.json", "events.jsonl", "evals.csv"):
        text = (runs / "broken" / name).read_text()
        (tmp_path / name).write_text(text if name != "evals.csv" else text.splitlines()[0] + "\n")
    with refuses("run", str(tmp_path)):
        Run(tmp_path)


def test_still_improves_is_true_only_for_a_rising_metric(runs: Path) -> None:
    run = Run(runs / "all" / "fed-raa-0")
    assert len(run.evals) >= 5
    run.evals["accuracy"] = range(len(run.evals))
    assert still_improves(run)
    run.evals["accuracy"] = 0.5
    assert not still_improves(run)


def test_run_that_reached_its_target_is_not_advised_to_run_longer(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(runs / "all" / "fed-raa-0")
    run.evals["accuracy"] = range(len(run.evals))
    monkeypatch.setitem(run.summary, "reason", "accuracy")
    assert not still_improves(run)
    assert "budget" not in compare_with_plan(run)


def test_single_seed_depends_only_on_groups_that_reached_the_target(runs: Path) -> None:
    groups = load_groups([runs / "all"])
    assert not faked(groups, {"ist": (2.0, 2.1), "fed-raa": ()}, by_time=True).has_single_seed
    assert faked(groups, {"ist": (2.0,), "fed-raa": ()}, by_time=True).has_single_seed


def test_methods_after_the_second_have_separate_p_values(runs: Path) -> None:
    first, second = load_groups([runs / "all"])
    ranking = Ranking((first, second, second), ((0.8, 0.82), (0.4, 0.42), (0.3, 0.9)), by_time=False, at=0.5)
    # Means 0.81 and 0.6, variances 0.0002 and 0.18: t = 0.21 / sqrt(0.0901) with about one degree of freedom.
    assert f"{second.label} 0.6000 (p = 0.61)" in ranking.in_words()
