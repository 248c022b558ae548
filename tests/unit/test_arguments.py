"""Wrong values of arguments that are not fields of an experiment are refused before anything is run or written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.arguments import as_tuple, to_path, to_paths
from fedraa.rundir.plots import plot_column

NO_PATHS = (5, None, [], b"runs/x")
CALLS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "resume": ("run", fl.resume),
    "replay": ("run", fl.replay),
    "History": ("run", fl.History),
    "load_personal_model": ("run", lambda value: fl.load_personal_model(value, client=0)),
    "from_file": ("config", fl.Experiment.from_file),
    "load_dataset": ("dataset", fl.load_dataset),
    "report out": ("out", lambda value: fl.report(["x"], value)),
    "report runs": ("runs", lambda value: fl.report([value])),
    "compare tuned": ("tuned", lambda value: fl.compare(["fedavg"], terms="tuned", tuned=value or 0)),
}
FLAGS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "resume quiet": ("quiet", lambda value: fl.resume("x", quiet=value)),
    "resume trust": ("trust", lambda value: fl.resume("x", trust=value, quiet=True)),
    "report landscape": ("landscape", lambda value: fl.report(["x"], landscape=value)),
    "report trust": ("trust", lambda value: fl.report(["x"], trust=value)),
    "load_personal_model": ("trust", lambda value: fl.load_personal_model("x", 0, trust=value)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", NO_PATHS)
def test_a_value_that_is_no_path_is_refused(name: str, value: object) -> None:
    field, call = CALLS[name]
    with refuses(field):
        call(value)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["x", 3, []])
def test_a_flag_is_true_or_false(name: str, value: object) -> None:
    field, call = FLAGS[name]
    with refuses(field, "True or False", got=value):
        call(value)


@pytest.mark.parametrize("value", [7, "x"])
def test_a_value_that_is_no_function_is_refused_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses("ended", got=value):
        fl.compare(["fedavg"], ended=value)
    with refuses("ended", got=value):
        fl.tune(["fedavg"], {"lr": (0.1, 0.2)}, ended=value)
    with refuses("follow", got=value):
        fl.tune(["fedavg"], {"lr": (0.1, 0.2)}, follow=value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seeds", ["abc", b"01", {0: 1}, 5, None])
def test_seeds_are_a_list(seeds: Any) -> None:
    with refuses("seeds", "range(3)", got=seeds):
        fl.compare(["fedavg"], seeds)


def test_report_takes_one_directory_without_a_list(tmp_path: Path) -> None:
    with refuses("run", str(tmp_path / "none")):
        fl.report(str(tmp_path / "none"), tmp_path / "page.html")
    with refuses("theme", "light", got="x"):
        fl.report(str(tmp_path), tmp_path / "page.html", theme="x")  # type: ignore[arg-type]


def test_tune_refuses_other_objects_as_the_experiment_and_as_names() -> None:
    with refuses("experiment", got=5):
        fl.tune(["fedavg"], {"lr": (0.1, 0.2)}, experiment=5)  # type: ignore[arg-type]
    with refuses("space", got=5):
        fl.tune(["fedavg"], {5: (0.1, 0.2)})  # type: ignore[dict-item]


def test_load_dataset_takes_paths_as_text_and_as_path(tmp_path: Path) -> None:
    with refuses("data_dir"):
        fl.load_dataset("mnist", str(tmp_path / "none"))
    with refuses("dataset: nope.csv"):
        fl.load_dataset(Path("nope.csv"))


def test_files_of_callbacks_are_paths(tmp_path: Path) -> None:
    with refuses("callbacks.path", got=5):
        fl.CSV(5)  # type: ignore[arg-type]
    with refuses("callbacks.path", "a directory", got=tmp_path):
        fl.CSV(tmp_path)


def test_fields_of_an_experiment_cannot_be_changed() -> None:
    experiment = fl.Experiment(lr=0.2)
    with refuses("lr", "replace_fields", got=0.1):
        experiment.lr = 0.1
    assert (experiment.lr, experiment.replace_fields({"lr": 0.1}).lr) == (0.2, 0.1)


@pytest.mark.parametrize("samples", [None, 5, [([[1.0]], [0])]])
def test_samples_of_clients_are_a_dict(samples: Any) -> None:
    with refuses("dataset 'd': clients", "dict(enumerate(pairs))", got=samples):
        fl.FederatedDataset.of_clients("d", samples, ([[1.0]], [0]))


def test_clients_with_the_same_name_as_number_and_text_are_refused() -> None:
    samples = (np.zeros((4, 2)), np.arange(4) % 2)
    with refuses("dataset 'mine': clients", "3"):
        fl.FederatedDataset.of_clients("mine", {1: samples, "1": samples, "b": samples}, samples)


def test_the_test_samples_of_clients_need_no_test_samples_of_all() -> None:
    samples = {name: (np.eye(2, dtype=np.float32), [0, 1]) for name in ("a", "b")}
    data = fl.FederatedDataset.of_clients("d", samples, test_of_clients=samples)
    assert data.test_clients == ["a", "a", "b", "b"]


def test_plot_refuses_a_column_that_cannot_be_a_name() -> None:
    pandas = pytest.importorskip("pandas")
    with refuses("plot", "loss", got=[]):
        plot_column(pandas.DataFrame({"t": [0.0], "loss": [1.0]}), [], "t", title="", time_label="")  # type: ignore[arg-type]


def test_paths_and_tuples_of_one_or_several_values() -> None:
    assert to_path("out", "a/b") == Path("a/b")
    with refuses("out", got=Path("a\0b")):
        to_path("out", "a\0b")
    assert to_paths("runs", "a", "paths") == to_paths("runs", Path("a"), "paths") == [Path("a")]
    assert to_paths("runs", iter(["a", Path("b")]), "paths") == [Path("a"), Path("b")]
    assert as_tuple("methods", "fedavg", "names") == ("fedavg",)
    assert as_tuple("seeds", range(2), "a list", single=()) == (0, 1)


def test_hook_with_other_parameters_is_refused_before_the_run(tmp_path: Path) -> None:
    class Short(fl.Callback):
        def on_eval(self, step, metrics):  # type: ignore[no-untyped-def,override]
            """Lack the parameter t."""

    class Long(fl.Callback):
        def on_round(self, event, more, *others):  # type: ignore[no-untyped-def,override]
            """Need one argument too many."""

    for callback, hook in ((Short(), "on_eval(self, step, t, metrics)"), (Long(), "on_round(self, event)")):
        with refuses("callbacks", hook):
            fl.run(updates=1, engine="local", callbacks=[callback], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
