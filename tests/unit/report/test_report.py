"""The report: statistics, curves, tables and commands."""

import csv
import json
import math
import shutil
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses

import fedraa
from fedraa.api import run
from fedraa.cli.main import Run as RunCommand
from fedraa.cli.main import _parse_arguments
from fedraa.config.experiment import Experiment
from fedraa.objectives import Classification
from fedraa.report import report, to_tensorboard, to_wandb
from fedraa.report.command import run_command
from fedraa.report.comparison import comparison_pictures, hold_last, mean_curve
from fedraa.report.page import _render_cell
from fedraa.report.runs import Group, Run, load_groups
from fedraa.report.statistics import half_width95, mean_or_nan, welch_p_value
from fedraa.report.tables import Cell, Table, configuration_tables, make_method_table, table_metrics
from fedraa.report.timeline import draw_time_use, select_clients, time_use_caption, window_end
from fedraa.rundir.digests import write_seal
from fedraa.rundir.file_names import CONFIG

FLAGS = {"engine": "local", "clients": 4, "hidden": (8,), "local_steps": 1, "quiet": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two seeds of an asynchronous method and one seed of a synchronous method."""
    folder = tmp_path_factory.mktemp("runs")
    for method, seed, limit in (("fed-raa", 0, {"updates": 12}), ("fed-raa", 1, {"updates": 12}), ("ist", 0, {})):
        flags = FLAGS | (limit or {"rounds": 3})
        run(Experiment(method=method, seed=seed, out=folder / f"{method}-{seed}", **flags))
    return folder


def test_half_width_equals_the_textbook_t_interval() -> None:
    # 1, 2, 3: standard deviation 1, and Student's 97.5 % quantile for 2 degrees of freedom is 4.303.
    assert half_width95([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert mean_or_nan([1.0, 2.0, 3.0]) == 2
    assert half_width95([1.0]) is None
    assert half_width95([1.0, math.inf]) is None


def test_welch_p_value_equals_the_closed_form_at_two_degrees_of_freedom() -> None:
    # Two pairs of equal spread: t = 4 / sqrt(0.5 / 2 + 0.5 / 2), 2 degrees of freedom. With these the tail
    # is p = 1 - t / sqrt(t² + 2).
    assert welch_p_value([1.0, 2.0], [5.0, 6.0]) == pytest.approx(1 - math.sqrt(32 / 34))
    assert welch_p_value([1.0], [5.0, 6.0]) is None
    assert welch_p_value([1.0, 1.0], [2.0, 2.0]) is None


def test_runs_are_grouped_over_seeds(runs: Path) -> None:
    groups = load_groups([runs])
    assert [(group.label, [member.seed for member in group.runs]) for group in groups] == [
        ("fed-raa", [0, 1]),
        ("ist", [0]),
    ]


def test_runs_of_other_versions_are_reported(runs: Path, tmp_path: Path) -> None:
    """An older version lacked two options, and a newer version has another one."""
    for name in ("older", "newer"):
        shutil.copytree(runs / "ist-0", tmp_path / name)
        config = json.loads((tmp_path / name / CONFIG).read_text())
        if name == "older":
            for option in ("units", "capacities"):
                del config["experiment"][option]
            del config["method"]["local"]["lr"]
        else:
            config["experiment"]["future"] = 3
        (tmp_path / name / CONFIG).write_text(json.dumps(config))
        write_seal(tmp_path / name, {})
    report([tmp_path, runs / "fed-raa-0"], tmp_path / "page.html")
    table = pd.read_csv(tmp_path / "page_files" / "runs.csv").set_index("method")
    assert table.index.tolist() == ["ist, future 3", "ist, future default", "fed-raa"]
    assert table["command"].str.startswith("# ").tolist() == [True, False, False]


def test_group_labels_have_the_differing_options_or_a_number(runs: Path, tmp_path: Path) -> None:
    run(Experiment(method="ist", rounds=2, out=tmp_path / "short", **FLAGS))
    assert [group.label for group in load_groups([runs / "ist-0", tmp_path])] == ["ist, rounds 3", "ist, rounds 2"]
    run(Experiment(method="ist", rounds=2, lr=0.1, partition="dirichlet", out=tmp_path / "z", **FLAGS))
    assert [group.label for group in load_groups([runs / "ist-0", tmp_path])] == ["ist #1", "ist #2", "ist #3"]


def test_runs_with_other_resolved_methods_are_separate_groups(runs: Path, tmp_path: Path) -> None:
    """The flags are equal, and the resolved methods differ, as in two versions with different defaults."""
    run(Experiment(method="fed-raa", seed=2, updates=12, out=tmp_path / "clipped", **FLAGS))
    config = json.loads((tmp_path / "clipped" / CONFIG).read_text())
    config["method"]["local"]["clip"] = 2.0
    (tmp_path / "clipped" / CONFIG).write_text(json.dumps(config))
    write_seal(tmp_path / "clipped", {})
    of_all = {frozenset({0, 1}), frozenset({2})}
    for order in permutations((runs / "fed-raa-0", runs / "fed-raa-1", tmp_path / "clipped")):
        groups = load_groups(order)
        assert {frozenset(member.seed for member in group.runs) for group in groups} == of_all
        assert [group.label for group in groups] == ["fed-raa #1", "fed-raa #2"]
    differ, _ = configuration_tables(load_groups([runs / "fed-raa-0", tmp_path / "clipped"]))
    assert [tuple(cell.text for cell in row) for row in differ.rows] == [("local.clip", "0", "2")]
    run(Experiment(method="fed-raa", lr=0.01, updates=12, out=tmp_path / "slow", **FLAGS))
    labels = [group.label for group in load_groups([runs / "fed-raa-0", tmp_path / "clipped", tmp_path / "slow"])]
    assert labels == ["fed-raa, lr default #1", "fed-raa, lr default #2", "fed-raa, lr 0.01"]


def test_seeds_with_automatic_capacities_are_one_group(tmp_path: Path) -> None:
    shared = FLAGS | {"capacities": "auto", "compute": "lognormal:1", "rounds": 1}
    loaded = [run(Experiment(method="fedrolex", seed=seed, out=tmp_path / f"{seed}", **shared)) for seed in (0, 1)]
    shares = [history.config["method"]["submodel"]["capacities"]["levels"] for history in loaded]
    assert shares[0] != shares[1]
    assert [len(group.runs) for group in load_groups([tmp_path])] == [2]


def test_method_objects_with_one_name_have_numbered_labels(tmp_path: Path) -> None:
    for mixing in (0.3, 0.7):
        own = fedraa.method("fedasync").replace(mixing=mixing)
        run(Experiment(method=own, updates=4, out=tmp_path / f"{mixing}", **FLAGS))
    assert [group.label for group in load_groups([tmp_path])] == ["fedasync #1", "fedasync #2"]


def test_seeds_with_different_models_are_separate_groups(tmp_path: Path) -> None:
    flags = {name: value for name, value in FLAGS.items() if name != "hidden"}
    for seed, width in enumerate((2, 6)):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.Linear(width, 10))
        run(Experiment(method="fedavg", rounds=1, seed=seed, out=tmp_path / f"{seed}", **flags), model=model)
    groups = load_groups([tmp_path])
    assert [(group.label, len(group.runs)) for group in groups] == [("fedavg #1", 1), ("fedavg #2", 1)]


def test_file_names_of_groups_with_similar_labels_differ(tmp_path: Path) -> None:
    for number, name in enumerate(("my avg", "my-avg", "метод", "схема")):
        own = replace(fedraa.method("fedasync"), name=name)
        run(Experiment(method=own, updates=2, out=tmp_path / f"{number}", **FLAGS))
    groups = {group.label: group.slug for group in load_groups([tmp_path])}
    assert groups == {"my avg": "my-avg", "my-avg": "my-avg-2", "метод": "метод", "схема": "схема"}


def test_load_refuses_a_run_that_occurs_twice(runs: Path) -> None:
    with refuses("runs", str(runs / "ist-0")):
        load_groups([runs / "ist-0", runs / "ist-0"])
    with refuses("run", str(runs / "none"), "config.json"):
        load_groups([runs / "none"])


def test_tasks_bytes_and_idle_time_follow_the_log(runs: Path) -> None:
    loaded = Run(runs / "fed-raa-0")
    assert loaded.tasks["done"].sum() == 12
    assert len(loaded.tasks) == 12 + 3, "every client but the last to answer is at work when the run ends"
    lines = loaded.history.lines()
    down = {line["task"]: line["bytes_down"] for line in lines if line["kind"] == "dispatch"}
    paid = sum(down[line["task"]] + line["bytes_up"] for line in lines if line["kind"] == "commit")
    assert loaded.evals["bytes"].iloc[0] == 0
    assert loaded.evals["bytes"].iloc[-1] == paid
    assert loaded.idle_fraction == pytest.approx(0, abs=1e-9), "asynchronous clients never wait"
    assert Run(runs / "ist-0").idle_fraction > 0.1, "speeds of 1 and 3 wait for one another in a round"


def test_curve_is_the_mean_until_the_first_seed_ends(runs: Path) -> None:
    (group,) = load_groups([runs / "fed-raa-0", runs / "fed-raa-1"])
    a, b = (member.evals for member in group.runs)
    at, middle, low, high = mean_curve(group, "t", "accuracy")
    assert at[-1] == min(member.end for member in group.runs)
    first, second = a["accuracy"].iloc[0], b["accuracy"].iloc[0]
    assert middle[0] == pytest.approx((first + second) / 2)
    # The band of two seeds is their range.
    assert (low[0], high[0]) == (min(first, second), max(first, second))


def test_curve_on_a_logarithmic_axis_begins_with_the_first_seed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three seeds ends before the others have a second evaluation."""
    (group,) = load_groups([runs / "fed-raa-0", runs / "fed-raa-1"])
    short, long = group.runs
    monkeypatch.setattr(short, "evals", pd.DataFrame({"t": [0.0, 1.0], "accuracy": [0.1, 0.7]}))
    monkeypatch.setattr(long, "evals", pd.DataFrame({"t": [0.0, 2.0], "accuracy": [0.1, 0.9]}))
    for member, end in ((short, 1.0), (long, 2.0)):
        monkeypatch.setitem(member.summary, "time", end)
    at, middle, low, high = mean_curve(Group("three", "three", (short, long, long)), "t", "accuracy", log=True)
    assert at.tolist() == [1.0]
    assert middle == pytest.approx((0.7 + 0.1 + 0.1) / 3)
    assert low[0] < middle[0] < high[0]


def test_times_of_different_clocks_have_no_common_axis(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = load_groups([runs])
    names = [picture.name for picture in comparison_pictures(groups)]
    assert names == ["accuracy-time", "accuracy-bytes", "accuracy-steps", "worst-time"]
    assert "clocks" not in make_method_table(groups, table_metrics(groups, {})).note
    monkeypatch.setitem(groups[1].first.config["experiment"], "units", "physical")
    names = [picture.name for picture in comparison_pictures(groups)]
    assert names == ["accuracy-bytes", "accuracy-steps"]
    assert "different clocks" in make_method_table(groups, table_metrics(groups, {})).note


def test_value_that_is_not_a_number_comes_last() -> None:
    """The script of the page sorts cells without a value last, and other cells as numbers."""
    assert 'data-value=""' in _render_cell(Cell("nan", math.nan), "", "accuracy")
    assert 'data-value="0.5"' in _render_cell(Cell("0.5000", 0.5), "", "accuracy")


def test_report_refuses_a_directory_as_its_page() -> None:
    with refuses("out"):
        report([], Path("."))


def test_curve_keeps_the_value_of_the_last_evaluation() -> None:
    """A slope between two evaluations would show values that were not measured."""
    times, values = pd.Series([0.0, 4.0, 8.0]), pd.Series([0.1, 0.5, 0.9])
    assert hold_last(np.array([0.0, 3.9, 4.0, 7.0, 8.0, 9.0]), times, values).tolist() == [0.1, 0.1, 0.5, 0.5, 0.9, 0.9]


def test_axis_contains_all_values_and_stays_within_zero_and_one(runs: Path) -> None:
    groups = load_groups([runs])
    for picture in comparison_pictures(groups):
        (axes, *_) = picture.draw().axes
        low, high = axes.get_ylim()
        lines = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()])
        assert 0 <= low <= lines.min()
        assert lines.max() <= high <= 1


def test_each_evaluation_is_marked_unless_there_are_many(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = load_groups([runs])
    count = sum(len(run.evals) for group in groups for run in group.runs)

    def marks() -> int:
        (axes, *_) = comparison_pictures(groups)[0].draw().axes
        return sum(len(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == ".")

    assert marks() == count
    monkeypatch.setattr(sys.modules["fedraa.report.comparison"], "MAX_MARKS", 1)
    assert marks() == 0


def test_a_thousand_clients_are_sampled_evenly() -> None:
    shown = select_clients(1000)
    assert (len(shown), shown[0], shown[-1]) == (40, 0, 999)
    assert set(np.diff(shown)) <= {25, 26}
    assert select_clients(3).tolist() == [0, 1, 2]


def test_a_short_run_is_shown_whole(runs: Path) -> None:
    loaded = Run(runs / "fed-raa-0")
    assert window_end(loaded) == loaded.end


def test_tables_of_a_single_seed_have_no_interval(runs: Path) -> None:
    groups = load_groups([runs])
    table = make_method_table(groups, table_metrics(groups, {}))
    cells = [dict(zip(table.columns, (cell.text for cell in row), strict=True)) for row in table.rows]
    both = [member.summary["accuracy"] for member in groups[0].runs]
    middle, half = sum(both) / 2, 12.706 * abs(both[0] - both[1]) / 2
    assert cells[0]["accuracy"] == f"{middle:.4f} [{max(0, middle - half):.4f}, {min(1, middle + half):.4f}]"
    assert cells[1]["accuracy"] == f"{groups[1].runs[0].summary['accuracy']:.4f}"
    assert [member["p"] for member in cells] == ["–", "–"]
    assert "one seed" in table.note
    alone = make_method_table(groups[1:], table_metrics(groups[1:], {}))
    assert alone.note.startswith("Each method has one seed, so there is no interval")


def test_mean_of_a_method_is_empty_if_a_seed_missed_the_target(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = load_groups([runs])
    monkeypatch.setitem(groups[0].runs[0].summary, "time_to_target", 2.0)
    monkeypatch.setitem(groups[1].runs[0].summary, "time_to_target", 3.0)
    table = make_method_table(groups, table_metrics(groups, {}))
    assert [row[table.columns.index("time to target")].text for row in table.rows] == ["reached in 1 of 2", "3"]
    times = table.frame["time_to_target"]
    assert math.isnan(times[0])
    assert times[1] == 3


def test_time_of_a_run_with_physical_units_is_in_seconds(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Run(runs / "fed-raa-0")
    assert loaded.time_unit == "time units"
    monkeypatch.setitem(loaded.config["experiment"], "units", "physical")
    assert loaded.time_unit == "s"
    assert draw_time_use(loaded).axes[0].get_xlabel() == f"share of {loaded.end:.4g} s"
    group = Group("fed-raa", "fed-raa", (loaded,))
    assert "time (s)" in make_method_table([group], table_metrics([group], {})).columns
    pictures = {picture.name: picture for picture in comparison_pictures([group])}
    for name in ("accuracy-time", "worst-time"):
        assert pictures[name].draw().axes[0].get_xlabel() == "virtual time (s)"


def test_caption_names_the_pauses_of_devices(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Run(runs / "fed-raa-0")
    assert "pauses" not in time_use_caption(loaded)
    monkeypatch.setitem(loaded.config["resolved"], "availability", {"share": 0.5, "period": 1.0, "seed": 0})
    assert "pauses while the device was not available" in time_use_caption(loaded)


def test_command_of_every_run_reproduces_it(runs: Path) -> None:
    groups = load_groups([runs])
    for group in groups:
        for member in group.runs:
            original = member.history.experiment
            again = _parse_arguments(run_command(original).split()[1:])
            assert isinstance(again, RunCommand)
            assert again.experiment == original.model_copy(update={"out": None, "quiet": False})


def test_command_with_flags_of_every_kind_reproduces_the_experiment() -> None:
    original = Experiment(
        method="heterofl",
        capacities=(1.0, 0.5),
        override={"submodel.capacities.redraw": False, "local.scale_activations": True},
        time=2.0,
    )
    again = _parse_arguments(run_command(original).split()[1:])
    assert isinstance(again, RunCommand)
    assert again.experiment == original


def test_latex_is_escaped_and_aligned() -> None:
    row = (Cell("a_b & 5 %", "a"), Cell("0.5 ± 0.1*", 0.5))
    table = Table("t", "Title", "Note.", ("name", "ε"), (row,), pd.DataFrame())
    assert r"\begin{tabular}{lr}" in table.latex
    assert r"name & $\varepsilon$ \\" in table.latex
    assert r"a\_b \& 5 \% & 0.5 $\pm$ 0.1$^{*}$ \\" in table.latex


def test_a_report_writes_the_page_and_its_files(runs: Path, tmp_path: Path) -> None:
    folder = report([runs / "ist-0"], tmp_path / "page.html", theme="light", landscape=True)
    text = (tmp_path / "page.html").read_text()
    assert "<h2>In words</h2>" in text
    assert "in rounds the fast clients wait for the slow ones" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    with (folder / "methods.csv").open() as stream:
        (line,) = csv.DictReader(stream)
    assert float(line["accuracy"]) == Run(runs / "ist-0").summary["accuracy"]
    assert line["accuracy_low"] == line["accuracy_high"] == ""
    assert float(line["sharpness"]) > 0
    assert {path.suffix for path in folder.iterdir()} == {".csv", ".tex", ".pdf"}


class Squared(Classification):
    """Classification with the squared cross-entropy of each sample."""

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().losses(outputs, targets) ** 2


def test_landscape_of_a_run_with_another_loss_is_refused(tmp_path: Path) -> None:
    history = run(Experiment(method="fedavg", rounds=1, objective=Squared(), out=tmp_path / "run", **FLAGS))
    with refuses("landscape", "Squared", "cross-entropy"):
        report([history.directory], tmp_path / "page.html", landscape=True, trust=True)


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_writer_without_its_package_is_refused(
    package: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, write = {
        "tensorboard": ("torch.utils.tensorboard", lambda: to_tensorboard([runs], tmp_path)),
        "wandb": ("wandb", lambda: to_wandb([runs], "project")),
    }[package]
    monkeypatch.setitem(sys.modules, module, None)
    with refuses("callbacks", f"{package} ", f"pip install {package}"):
        write()


def test_page_in_a_folder_that_cannot_be_created_is_refused(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refuses("out", "file", got=tmp_path / "file" / "page.html"):
        report([runs / "ist-0"], tmp_path / "file" / "page.html")
