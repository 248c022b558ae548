"""Equal, paper's and tuned terms: the values of each method, errors, and the remaining differences."""

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refusals import refuses

import fedraa as fl
from benchmarks.studies.commands import apply_terms, format_differences
from benchmarks.studies.metrics import ACCURACY
from benchmarks.studies.study import Cell, Study
from fedraa import Experiment
from fedraa.client.lr_schedule import lr_schedule, lr_unit
from fedraa.composition.registry import find_method, list_methods
from fedraa.report.cells import make_experiments
from fedraa.report.differences import setting_differences
from fedraa.settings.resolve import drop_unused_options, resolve_method
from fedraa.settings.terms import on_terms, paper_settings
from fedraa.settings.tuned import read_tuned, read_tuned_about, warn_of_other_data, write_tuned

METHODS = list_methods()


def test_equal_terms_give_every_method_the_same_local_training_and_weights() -> None:
    """On equal terms all methods have one rate, momentum 0, no decay, no clipping, five epochs and uniform means."""
    for cell in make_experiments(tuple(METHODS), (0,), Experiment(lr=0.3, time=1.0), terms="equal"):
        method = resolve_method(cell)
        local = method.local
        assert (local.lr, local.momentum, local.weight_decay, local.clip) == (0.3, 0.0, 0.0, 0.0), method.name
        assert (local.epochs, local.steps, local.batch_size) == (5, None, 32), method.name
        assert getattr(method.update, "weights", "uniform") == "uniform", method.name
        assert getattr(method.schedule, "participation", "all") == "all", method.name
        assert getattr(method.schedule, "concurrency", None) is None, method.name


def test_flags_override_equal_terms() -> None:
    flags = Experiment(momentum=0.3, weights="samples", local_steps=7, participation="sample:3", time=1.0)
    fedavg, asynchronous = make_experiments(("fedavg", "fedasync"), (0,), flags, terms="equal")
    assert (fedavg.momentum, fedavg.weights, fedavg.local_steps, fedavg.local_epochs) == (0.3, "samples", 7, None)
    assert (fedavg.participation, asynchronous.concurrency, asynchronous.participation) == ("sample:3", 3, None)
    (drawn,) = make_experiments(("fedasync",), (0,), Experiment(concurrency=4, time=1.0), terms="equal")
    assert drawn.concurrency == 4
    _, fifth = make_experiments(
        ("fedavg", "fedasync"), (0,), Experiment(participation="bernoulli:0.2", time=1.0), terms="equal"
    )
    # This is a fifth of ten clients.
    assert fifth.concurrency == 2


def test_methods_without_terms_keep_their_defaults() -> None:
    """Without terms each method has its default values."""
    fedavg, fedsam = make_experiments(("fedavg", "fedsam"), (0,), Experiment(time=1.0))
    assert (resolve_method(fedavg).local.momentum, resolve_method(fedsam).local.momentum) == (0.5, 0.0)
    assert resolve_method(fedavg).update.weights == "samples"


def test_every_method_accepts_the_terms_of_its_paper() -> None:
    for name in METHODS:
        experiment = on_terms(Experiment(method=name, clients=20, time=1.0), "paper")
        # All values that the paper states are values of the method.
        assert drop_unused_options(experiment) == experiment, name
        resolve_method(Experiment(**dict(experiment)))


def test_client_fraction_of_a_paper_becomes_a_count_of_clients() -> None:
    assert on_terms(Experiment(method="heterofl", clients=50), "paper").participation == "sample:5"
    assert on_terms(Experiment(method="heterofl", clients=3), "paper").participation == "sample:1"


def test_combined_method_has_the_paper_settings_of_its_local_training() -> None:
    assert find_method("oap+fedsam").paper_settings == METHODS["fedsam"].paper_settings


def test_tuned_terms_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    table = {"value": 0.9, "at_edge": ["lr"], "terms": {"lr": 0.25, "local_steps": 9}}
    write_tuned(path, {"dataset": 'a "b"'}, {"fedavg": table, "my_ext:MINE": table | {"terms": {"lr": 1e-05}}})
    tuned = read_tuned(path)
    assert tuned == {"fedavg": {"lr": 0.25, "local_steps": 9}, "my_ext:MINE": {"lr": 1e-05}}
    (fedavg,) = make_experiments(("fedavg",), (0,), Experiment(time=1.0), "tuned", tuned)
    assert (fedavg.lr, fedavg.local_steps) == (0.25, 9)


def test_tuned_file_with_a_path_that_is_not_utf8_is_read_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "tuned.toml"
    write_tuned(path, {"dataset": "not \udcff UTF-8.npz"}, {"fedavg": {"terms": {"lr": 0.25}}})
    about, tuned = read_tuned_about(path)
    assert tuned == {"fedavg": {"lr": 0.25}}
    warn_of_other_data(path, about, "not \udcff UTF-8.npz")
    assert not recwarn.list


@pytest.mark.parametrize("values", [{"local.momentumm": 0.5}, {"concurrency": 3}, {"update.mixing": 0.5}])
def test_tuned_value_that_its_method_does_not_use_is_refused(values: dict[str, float]) -> None:
    """Such a value was ignored, so that the comparison had the defaults of the method."""
    with refuses("tuned", *values, "fedavg"):
        make_experiments(("fedavg",), (0,), Experiment(time=1.0), "tuned", {"fedavg": values})


@pytest.mark.parametrize(("tuned_on", "warned"), [("digits", False), (None, False), ("DATA/cifar10.npz", True)])
def test_values_tuned_on_other_data_give_a_warning(tuned_on: str | None, warned: bool, tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    write_tuned(path, {} if tuned_on is None else {"dataset": tuned_on}, {"fedavg": {"terms": {"lr": 0.2}}})
    fields: dict[str, Any] = {
        "terms": "tuned",
        "tuned": path,
        "engine": "local",
        "rounds": 1,
        "quiet": True,
        "out": tmp_path / "runs",
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fl.compare(["fedavg"], **fields)
    found = [str(one.message) for one in caught if issubclass(one.category, fl.RunWarning)]
    assert len(found) == warned
    if warned:
        assert all(name in found[0] for name in (str(path), str(tuned_on), "digits"))


@pytest.mark.parametrize(
    ("methods", "flags", "terms", "tuned", "field", "name"),
    [
        (("fedavg",), {}, "fair", None, "terms", "paper"),
        (("fedavg",), {}, "tuned", None, "tuned", "--terms tuned"),
        (("fedavg",), {}, "equal", {}, "tuned", "--terms tuned"),
        (("fedavg",), {}, "tuned", {"fedsam": {"lr": 1.0}}, "tuned", "fedavg"),
        (("fedsam",), {"lr": 0.3}, "paper", None, "lr", "fedsam has 0.1"),
        # 32 is the default of every method.
        (("fedsam",), {"batch_size": 32}, "paper", None, "batch_size", "fedsam has 128"),
        (("fedavg",), {"lr": 0.3}, "tuned", {"fedavg": {"lr": 1.0}}, "lr", "fedavg has 1"),
        (("fedavg", "scaffold"), {"momentum": 0.5}, "equal", None, "momentum", "scaffold"),
        (("fedavg", "fed-raa"), {"lr_schedule": "cosine:9"}, None, None, "lr_schedule", "cosine:9@time"),
        (("fedavg", "fedprox"), {"mixing": 0.5}, "equal", None, "mixing", "fedprox"),
    ],
)
def test_terms_that_exclude_the_fields_are_refused(
    methods: tuple[str, ...],
    flags: dict[str, object],
    terms: str,
    tuned: dict[str, dict[str, float]],
    field: str,
    name: str,
) -> None:
    with pytest.raises(ValueError, match=f"^{field}: .*{name}"):
        list(map(resolve_method, make_experiments(methods, (0,), Experiment(time=1.0, **flags), terms, tuned)))


def test_paper_terms_are_refused_for_a_custom_method() -> None:
    with refuses("terms", "own"):
        paper_settings(fl.Method())


@pytest.mark.parametrize("text", ["", "x = 1", "[methods]\n", "[methods.fedavg]\nlr = 1\n", "= 3", "\xff"])
def test_file_without_tuned_values_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_bytes(text.encode("latin-1"))
    with refuses("tuned", got=path):
        read_tuned(path)
    with refuses("tuned", got=tmp_path / "nowhere.toml"):
        read_tuned(tmp_path / "nowhere.toml")


def test_setting_differences_list_setting_value_and_methods() -> None:
    of = {name: Experiment(method=name) for name in ("fedavg", "fedprox", "fed-raa")}
    rows = setting_differences(of.items())
    methods_by_value = {(setting, value): who for setting, value, who in rows.itertuples(index=False)}
    assert methods_by_value["local.prox_mu", "0"] == "fedavg"
    assert methods_by_value["local.prox_mu", "0.1"] == "fedprox"
    assert methods_by_value["update", "Mean"] == "fedavg, fedprox"
    assert methods_by_value["update.mixing", "0.6"] == "fed-raa"
    settings = set(rows["setting"])
    # The value is .5 for all three methods.
    assert "local.momentum" not in settings
    # Both methods in rounds have weights by samples.
    assert "update.weights" not in settings


def test_equal_experiments_have_no_setting_differences() -> None:
    assert setting_differences([("a", Experiment(method="fedsam")), ("b", Experiment(method="fedsam"))]).empty


def test_study_lists_differences_between_rows_but_not_between_columns() -> None:
    cells_of = [
        Cell(row, Experiment(method=row, lr=lr), f"lr {lr:g}") for lr in (0.1, 0.2) for row in ("fedavg", "fedsam")
    ]
    study = Study("s", "Rates", cells_of, (ACCURACY,), "fedavg")
    assert "| local.momentum | 0.5 | fedavg |" in format_differences(study)
    assert "local.lr" not in format_differences(study)
    equal = apply_terms(study, "equal", None)
    assert equal.title == "Rates, on equal terms"
    assert "local.momentum" not in format_differences(equal)
    assert "| local.sam_rho | 0.5 | fedsam |" in format_differences(equal)
    # The fields that the study varies stay.
    assert [cell.experiment.lr for cell in equal.cells] == [0.1, 0.1, 0.2, 0.2]
    paper = apply_terms(study, "paper", None)
    assert [cell.experiment.lr for cell in paper.cells] == [0.1, 0.1, 0.2, 0.1]
    assert apply_terms(study, None, None) is study


def test_lr_schedule_counts_steps_time_or_passes() -> None:
    assert [lr_unit(spec) for spec in ("cosine:4", "cosine:4@time", "exponential:.9@passes")] == [
        "steps",
        "time",
        "passes",
    ]
    assert lr_schedule("exponential:0.25@time")(0.5) == pytest.approx(0.5)
    assert lr_schedule("steps:1.5,2.5:0.1@passes")(2.0) == pytest.approx(0.1)
    half = lr_schedule("cosine:0.5@time")
    # The factor is (1 + cos(pi / 2)) / 2.
    assert half(0.25) == pytest.approx(0.5)
    # Methods divide by the rate, so it must not be 0.
    assert half(9.0) == half(0.6) > 0
    with refuses("lr_schedule", got="constant@moon"):
        lr_unit("constant@moon")


def test_compare_writes_the_differences_of_settings(tmp_path: Path) -> None:
    import fedraa

    base = Experiment(clients=2, hidden=(4,), local_steps=1, engine="local", out=tmp_path / "all", time=0.01)
    fedraa.compare(["fedavg", "fedprox"], experiment=base, terms="equal")
    rows = pd.read_csv(tmp_path / "all" / "differences.csv", dtype=str)
    assert rows.values.tolist() == [["local.prox_mu", "0", "fedavg"], ["local.prox_mu", "0.1", "fedprox"]]
