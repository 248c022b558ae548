"""The race: its numbers, equal tuning of all methods, and the methods that take part."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from race_runs import A, runs_of
from refusals import refuses

import fedraa
from benchmarks.studies.commands import run_study
from benchmarks.studies.options import RunOptions
from benchmarks.studies.race.entrants import ENTRANTS, FIRST, LENT_TO, LIMIT, OURS, ROUNDS, SHORTENED, Entrant
from benchmarks.studies.race.measures import cost_to_accuracy
from benchmarks.studies.race.overview import format_overview
from benchmarks.studies.race.picture import GREY, accuracy_range, choose_colours
from benchmarks.studies.race.record import write_record
from benchmarks.studies.race.runs import LONG_RUN_SEEDS, Race
from benchmarks.studies.race.settings import QUICK, SETTINGS, Setting
from benchmarks.studies.race.table import (
    describe_findings,
    format_table,
    group_by_entrant,
    make_columns,
    make_frame,
    rank_entrants,
)
from benchmarks.studies.study import FLEETS
from fedraa.composition.registry import list_methods
from fedraa.config.experiment import Experiment
from fedraa.devices.fleet import REFERENCE_EPOCHS
from fedraa.engine.build import build_run
from fedraa.errors import InputError
from fedraa.settings.resolve import resolve_method
from fedraa.tuning import tuner
from fedraa.tuning.space import describe_space

METHODS = list_methods()
SPENT = pd.DataFrame(
    [(0, 0.0, 0.1, 1e6, 0.0), (1, 0.5, 0.94, 3e6, 2e9), (2, 0.7, 0.96, 5e6, 4e9), (3, 0.9, 0.95, 7e6, 6e9)],
    columns=["step", "t", "accuracy", "bytes", "flops"],
)


def test_cost_to_accuracy_ends_at_the_first_evaluation_at_the_target() -> None:
    costs = [cost_to_accuracy(SPENT, name, 0.95) for name in ("t", "bytes", "flops")]
    assert costs == pytest.approx([0.7, 5.0, 4.0])
    assert cost_to_accuracy(SPENT, "t", 0.94) == 0.5
    assert cost_to_accuracy(SPENT, "t", 0.97) == math.inf


def test_all_asynchronous_methods_take_part_in_the_race() -> None:
    asynchronous = {name for name, method in METHODS.items() if method.asynchronous}
    # The race was run before these methods existed.
    asynchronous -= {"feddyn-async", "fednova-async", "salf-async"}
    assert asynchronous | {ROUNDS, "fedrolex", "ist", "delta-sgd", LIMIT} == ENTRANTS.keys()


@pytest.mark.parametrize("setting", [QUICK, *SETTINGS.values()], ids=lambda setting: setting.name)
def test_search_spaces_share_rates_and_lengths_and_add_at_most_two_values(setting: Setting) -> None:
    for entrant in (*ENTRANTS.values(), *LENT_TO.values()):
        space = entrant.space(setting)
        assert space["lr"] == setting.lr
        assert [int(str(length).removeprefix("auto:")) for length in space["local_steps"]] == list(setting.lengths)
        assert len(space) <= 4
        if entrant.refusal_reason(setting) is None:
            assert resolve_method(Experiment(**entrant.fields(setting)))


@pytest.mark.parametrize("name", ["ace", "asyncfeded", "delay-adaptive", "ringleader", "ringmaster"])
def test_methods_that_step_at_every_update_have_smaller_rates_for_more_clients(name: str) -> None:
    assert ENTRANTS[name].space(A)["server_lr"] == "0.25:1:log"
    assert ENTRANTS[name].space(SETTINGS["clients100"])["server_lr"] == "0.025:0.1:log"


@pytest.mark.parametrize("entrant", ENTRANTS.values(), ids=lambda entrant: entrant.name)
def test_tuner_accepts_the_search_space_of_every_method(entrant: Entrant) -> None:
    fields = entrant.fields(QUICK)
    plan = tuner._Plan.of((fields.pop("method"),), tuner.make_space(entrant.space(QUICK)), 12, Experiment(**fields))
    (space,) = plan.spaces.values()
    assert space.keys() == entrant.space(QUICK).keys()
    assert tuner.make_space(describe_space(space)) == space


def test_the_limit_does_as_much_work_as_all_devices_together() -> None:
    """In A, five devices of speed 1 and five of speed 3 train a tenth of the data each: ten passes in time 1."""
    limit = ENTRANTS[LIMIT].fields(A)
    assert (limit["clients"], limit["method"]) == (1, ROUNDS)
    passes = REFERENCE_EPOCHS * float(limit["compute"].partition(":")[0])
    assert passes == (5 * 1 + 5 * 3) * REFERENCE_EPOCHS / 10 == 10
    assert SETTINGS["C"].compute == (5 * 1 + 5 * 10) / 10


def test_findings_state_the_faster_method_and_the_factor() -> None:
    ours = runs_of(OURS, 0.3, 0.5, part="untuned")
    runs = [
        *ours,
        *runs_of("fedbuff", 1.1, 0.9, part="untuned"),
        *runs_of(ROUNDS, 1.9, 2.1),
        *runs_of(LIMIT, 0.1, 0.1),
    ]
    sentences = describe_findings(A, runs, [])
    assert re.fullmatch(r"tuned, 97\.5 %: fed-quilt .* 1/5\.0 .*fedavg.* \(2\.000\)\.", sentences[0])
    assert re.fullmatch(r"tuned, 97\.5 %: .* limit .* 0\.100, .*fed-quilt .* 4\.0 x .*", sentences[1])
    assert re.match(r"untuned, 97\.5 %: fed-quilt .* 0\.400, 2\.50 x .* other method, fedbuff", sentences[2])
    assert sentences[3].startswith("tuned, not run: fedbuff, ")
    late = describe_findings(A, [*runs_of(OURS, 0.5, 0.5, part="untuned"), *runs_of(ROUNDS, 2.4, math.inf)], [])
    assert re.fullmatch(r"tuned, 97\.5 %: fedavg .* 1 of 2 runs .* 2\.5, .* 5\.0 x .*fed-quilt\.", late[0])
    never = describe_findings(A, [*runs_of(OURS, 0.5, part="untuned"), *runs_of(ROUNDS, math.inf)], [])
    assert re.fullmatch(r"tuned, 97\.5 %: fedavg .*\bnot\b.* 2\.5, .* 5\.0 x .*fed-quilt\.", never[0])
    lost = describe_findings(A, [*runs_of(OURS, 1.0, part="untuned"), *runs_of("ist", 0.5, part="untuned")], [])
    assert re.fullmatch(r"untuned, 97\.5 %: ist is faster: .* 0\.500, 2\.00 x .*fed-quilt \(1\.000\)\.", lost[0])
    missed = describe_findings(A, runs_of(OURS, 0.5, math.inf, part="untuned"), [])
    assert missed[0] == "fed-quilt does not reach 97.5 % in every run."
    long = [*runs_of(OURS, 0.3, 0.5, part="long-untuned"), *runs_of(ROUNDS, 1.9, 2.1, part="long")]
    long += runs_of("ist", math.inf, math.inf, part="long")
    ends = describe_findings(A, ours, long)[0]
    assert re.match(r".*: fed-quilt .* 97\.50 % at 2\.5, .* 2 other methods, tuned, fedavg, 97\.50 % at 2\.5 \(", ends)


def test_variants_with_fed_quilt_settings_do_not_count_as_other_methods(tmp_path: Path) -> None:
    helped = LENT_TO["fedbuff-lent"]
    method = resolve_method(Experiment(**helped.fields(A)))
    assert (method.local.clip, method.local.logit_calibration, method.schedule.polyak_fraction) == (2.0, 0.8, 0.1)
    assert method.update == resolve_method(Experiment(method="fedbuff")).update
    assert helped.space(A) == ENTRANTS["fedbuff"].space(A)
    assert ENTRANTS["fedbuff"].fields(A).keys() & {"clip", "override", "polyak_fraction"} == set()
    assert LENT_TO.keys() & {OURS + "-lent", "limit-lent"} == set()
    runs = [*runs_of("fedbuff", 1.1, 0.9), *runs_of("fedbuff-lent", 0.5, 0.7), *runs_of(OURS, 0.4, 0.4, part="untuned")]
    sentences = describe_findings(A, runs, [])
    assert re.search(r" 1\.50 x .* parts of fed-quilt, fedbuff-lent \(0\.600\)", sentences[0])
    assert not any("-lent" in sentence for sentence in sentences[1:])
    write_record(tmp_path / "race_A.runs.jsonl.gz", runs)
    assert "| 1.000 fedbuff | 0.400 |" in format_overview(tmp_path)
    grey = {"fedbuff-lent": GREY, "ace-lent": GREY}
    assert choose_colours([*grey, "ace", "fadas"]) == grey | choose_colours(["ace", "fadas"])


def test_variants_with_tasks_of_one_batch_count_as_other_methods(tmp_path: Path) -> None:
    short = SHORTENED["fedbuff-short"]
    assert short.fields(A) == ENTRANTS["fedbuff"].fields(A)
    assert short.space(A) == ENTRANTS["fedbuff"].space(A) | {"local_steps": [1]}
    assert SHORTENED.keys() & {OURS + "-short", "limit-short"} == set()
    runs = [*runs_of("fedbuff", 1.1, 0.9), *runs_of("fedbuff-short", 0.5, 0.7)]
    write_record(tmp_path / "race_A.runs.jsonl.gz", [*runs, *runs_of(OURS, 0.4, 0.4, part="untuned")])
    assert "| 0.600 fedbuff-short | 0.400 |" in format_overview(tmp_path)
    assert choose_colours(["fedbuff-short"]) == {"fedbuff-short": GREY}


def test_variants_have_no_logit_calibration_in_a_setting_without_labels() -> None:
    fields = LENT_TO["fedbuff-lent"].fields(SETTINGS["shakespeare"])
    assert (fields["clip"], fields["polyak_fraction"], fields["override"]) == (
        2.0,
        0.1,
        {"local.logit_calibration": 0.0},
    )
    assert LENT_TO["fedbuff-lent"].refusal_reason(SETTINGS["shakespeare"]) is None
    assert "logits" in str(LENT_TO["fedrolex-lent"].refusal_reason(SETTINGS["shakespeare"]))


def test_entrant_has_the_same_colour_in_every_race() -> None:
    of_all = choose_colours(list(ENTRANTS))
    assert choose_colours([ROUNDS, OURS]) == {name: of_all[name] for name in (ROUNDS, OURS)}
    seen = [colour for colour in of_all.values() if colour != GREY]
    # The two best other methods also have colours.
    assert len(set(seen)) == len(seen) == len(FIRST) + 2
    assert (
        choose_colours(["ist", "ace", "fadas", "fedgmr"])["fadas"]
        != GREY
        == choose_colours(["ace", "ca2fl", "fadas"])["fadas"]
    )


def test_method_that_misses_the_target_in_a_run_has_no_mean_time() -> None:
    runs = [*runs_of(OURS, 0.3, 0.5), *runs_of(ROUNDS, 1.9, math.inf), *runs_of("ist", math.inf, math.inf)]
    of, shown = group_by_entrant(runs, "tuned"), make_columns(A)
    assert rank_entrants(shown, of) == [OURS, ROUNDS, "ist"]
    lines = format_table(shown, of).split("\n")
    assert "| 1 of 2 there |" in lines[3]
    assert "–" in lines[4]
    assert "| 1230 | 1230 |" in format_table(
        shown,
        {"ist": runs_of("ist", 123.4)},
        # MB and GFLOP are ten times the time here.
    )
    table = make_frame(A, runs, [], {})
    row = table[(table["entrant"] == ROUNDS) & (table["figure"] == "time to 97.5 %")].iloc[0]
    assert (row["mean"], row["n"], row["reached"]) == (math.inf, 2, 1)


@pytest.mark.parametrize(
    ("name", "values", "every"),
    [
        ("fedbuff", {"local_steps": 10, "buffer_size": 5}, 4),  # 4 updates x 5 arrivals x 10 batches = 200
        ("fedbuff", {"local_steps": 94, "buffer_size": 5}, 1),
        # Its buffer size is 10.
        ("fedbuff", {"local_steps": 10}, 2),
        ("fadas", {"local_steps": 4, "buffer_size": 5}, 10),
        ("fedasync", {"local_steps": 10}, 20),
        # Five epochs have 235 batches.
        ("fedasync", {}, 1),
        # By default, a task has one batch.
        (OURS, {}, 200),
        (LIMIT, {"local_steps": 10}, 5),
        (ROUNDS, {"local_steps": 10}, None),
    ],
)
def test_all_methods_are_evaluated_after_equally_many_batches(
    name: str, values: dict[str, Any], every: int | None, tmp_path: Path
) -> None:
    """An update of a full buffer counts as several client updates, so that all methods are evaluated equally often."""
    race = Race(A, tmp_path, tmp_path, (0,), tuned_values={name: values})
    cell = race.cell(ENTRANTS[name], "untuned" if name == OURS else "tuned")
    assert cell is not None
    assert cell.experiment.eval_every == every


def test_runs_with_slow_links_are_evaluated_after_each_long_task(tmp_path: Path) -> None:
    """In D, sending takes as long as 235 batches, which is more than the 200 batches between two evaluations."""
    cell = Race(SETTINGS["D"], tmp_path, tmp_path, (0,)).cell(ENTRANTS[OURS], "untuned")
    assert cell is not None
    assert cell.experiment.eval_every == 1


def test_trials_are_evaluated_as_often_as_runs_of_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are evaluated every 200 batches for any task length, so that short tasks have no advantage."""
    asked: list[Any] = []
    monkeypatch.setattr(tuner, "tune", lambda *args, follow, **kwargs: asked.append(follow))
    race = Race(A, tmp_path, tmp_path, (0,))
    for name in ("fedasync", "fedbuff", OURS, ROUNDS):
        race.tune(ENTRANTS[name], lambda what: None)
    # Fed-Quilt is not tuned.
    one, buffered, rounds = asked
    assert [one({"local_steps": steps})["eval_every"] for steps in (10, 94, 500)] == [20, 2, 1]
    assert [buffered({"local_steps": 10, "buffer_size": size})["eval_every"] for size in (3, 5, 10)] == [7, 4, 2]
    assert rounds({"local_steps": 10})["eval_every"] is None


def test_fed_quilt_is_not_tuned_and_compare_gives_it_its_defaults(tmp_path: Path) -> None:
    race = Race(A, tmp_path, tmp_path, (0,), tuned_values={OURS: {"lr": 0.7, "local_steps": 20}})
    assert race.cell(ENTRANTS[OURS], "tuned") is race.cell(ENTRANTS[OURS], "long") is None
    assert resolve_method(Experiment(method=OURS, **race.values(ENTRANTS[OURS]))) == fedraa.method(OURS)


def test_long_runs_take_five_times_the_time_of_fedavg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is FedAvg's time to the last target that all its seeds reach, after all of them have run."""
    race = Race(A, tmp_path, tmp_path, (0, 1))
    for lasts, time in (((1.8, 2.2), 10.0), ((1.8, math.inf), 12.5), ((1.8,), None)):
        monkeypatch.setattr(Race, "_load_measured", lambda self, part, entrants, lasts=lasts: runs_of(ROUNDS, *lasts))
        assert race.long_time() == time
        untuned = race.cell(ENTRANTS[OURS], "long-untuned")
        assert (untuned and untuned.experiment.time) == (time and time / 5)
    more_seeds = replace(race, seeds=(*range(LONG_RUN_SEEDS), 5, 6))
    first = [1.0, 1.5, 2.0, 2.5, 1.0]
    for lasts in (first, [*first, 2.4, math.inf]):
        monkeypatch.setattr(Race, "_load_measured", lambda self, part, entrants, lasts=lasts: runs_of(ROUNDS, *lasts))
        assert more_seeds.long_time() == 8.0


def test_unknown_or_repeated_arguments_are_refused(tmp_path: Path) -> None:
    with refuses("setting", "A, B, ", got="Z"):
        run_study("race", RunOptions(setting=("Z",), out=tmp_path))
    for quick, setting in ((False, ("digits",)), (True, ("A",))):
        with refuses("setting", "--quick", "digits", got=setting):
            run_study("race", RunOptions(quick=quick, setting=setting, out=tmp_path))
    with refuses("jobs", got=0):
        run_study("race", RunOptions(quick=True, jobs=0, out=tmp_path))
    with refuses("seeds", got=(0, -1)):
        run_study("race", RunOptions(quick=True, seeds=(0, -1), out=tmp_path))
    for chosen in ({"methods": (ROUNDS, ROUNDS)}, {"parts": ("tuned", "tuned")}, {"seeds": (0, 0)}, {"seeds": ()}):
        ((field, values),) = chosen.items()
        with refuses(field, got=values):
            run_study("race", RunOptions(quick=True, out=tmp_path, **chosen))
    with refuses("seeds", "digits", ROUNDS):
        run_study("race", RunOptions(quick=True, methods=(OURS,), parts=("tuned", "long"), out=tmp_path))
    with refuses("methods", "fed-quilt, ", got="fedmagic"):
        run_study("race", RunOptions(quick=True, methods=("fedmagic",), out=tmp_path))
    with refuses("study", got="raa_beta"):
        run_study("raa_beta", RunOptions(quick=True, setting=("A",), out=tmp_path))


def test_method_that_cannot_run_in_a_setting_is_omitted_or_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedRolex and its asynchronous variant mask the logits of labels, and next-token data have no labels."""
    ran: list[str] = []
    monkeypatch.setattr("benchmarks.studies.race.command._run_setting", lambda race, entrants, *_: ran.extend(entrants))
    run_study("race", RunOptions(setting=("shakespeare",), out=tmp_path))
    masking = {"fedrolex", "heterofl-async", "fedrolex-async"}
    assert {entrant.name for entrant in ran} == ENTRANTS.keys() - masking
    sentences = describe_findings(SETTINGS["shakespeare"], [], [])
    assert sentences[0].startswith("fedrolex cannot be run here: objective: ")
    assert not masking & set(re.findall(r"[\w-]+", sentences[-1]))
    cells = [Race(SETTINGS["shakespeare"], tmp_path, None, (0,)).cell(ENTRANTS[name], "untuned") for name in masking]
    assert cells == [None] * 3
    with refuses("methods", "fedrolex", "shakespeare", "(obj"):
        run_study("race", RunOptions(setting=("A", "shakespeare"), methods=(OURS, "fedrolex"), out=tmp_path))


def test_method_that_cannot_run_on_a_model_is_omitted_with_the_error_of_a_run(small_data: Path, tmp_path: Path) -> None:
    """The first convolution of the CNN has fewer units than there are clients."""
    setting = SETTINGS["cifar10"]
    fields = ENTRANTS["ist"].fields(setting) | {"dataset": str(small_data / "cifar10-subset.npz"), "engine": "local"}
    with refuses("clients", "group '0'", " 6 ", got=10):
        fedraa.run(Experiment(**fields), out=tmp_path / "run")
    assert list(setting.without) == ["ist"]
    assert re.fullmatch(r"clients: 10 .* group '0' .* 6", setting.without["ist"])
    assert (
        ENTRANTS["ist"].refusal_reason(setting) == LENT_TO["ist-lent"].refusal_reason(setting) == setting.without["ist"]
    )
    assert ENTRANTS["ist"].refusal_reason(A) is None


def test_axis_of_accuracies_has_all_targets_and_no_negative_accuracy() -> None:
    assert accuracy_range((0.90, 0.93, 0.95)) == pytest.approx((77.5, 97.1))
    assert accuracy_range((0.03, 0.05, 0.06)) == pytest.approx((0.0, 6.72))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_a_subset_of_cifar_is_read_from_the_folder_of_the_data(name: str, tmp_path: Path) -> None:
    with refuses("data_dir", name, f"{name}-subset.npz"):
        Race(SETTINGS[name], tmp_path, None, (0,))
    cell = Race(SETTINGS[name], tmp_path, tmp_path / "data", (0,)).cell(ENTRANTS[OURS], "untuned")
    assert cell is not None
    assert cell.experiment.dataset == str(tmp_path / "data" / f"{name}-subset.npz")


def test_methods_that_wait_for_all_clients_are_omitted_if_devices_drop_out() -> None:
    setting, refused = SETTINGS["dropouts"], {}
    for name, entrant in ENTRANTS.items():
        try:
            build_run(
                Experiment(
                    **entrant.fields(setting) | {"dataset": "digits", "engine": "local", "time": setting.horizon}
                )
            )
        except InputError as error:
            refused[name] = (error.field, error.got)
    dropouts = ("availability", FLEETS / "dropouts.csv")
    assert refused == dict.fromkeys(("ace", "generalized-asyncsgd", "ringleader"), dropouts)
    assert setting.without == {name: ENTRANTS[name].refusal_reason(setting) for name in refused}
    for name, reason in setting.without.items():
        assert re.fullmatch(rf"availability: dropouts\.csv .* {name} .*", reason)
