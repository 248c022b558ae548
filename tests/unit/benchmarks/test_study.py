"""Studies: their tables and findings, and their continuation after a kill."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses
from torch import nn

from benchmarks.studies.commands import command_line, run_study
from benchmarks.studies.generalisation import (
    FLATNESS_SAMPLES,
    draw_direction,
    find_largest_eigenvalue,
    measure_flatness,
)
from benchmarks.studies.metrics import ACCURACY, Metric
from benchmarks.studies.options import RunOptions
from benchmarks.studies.picture import NAMED, _choose_styles
from benchmarks.studies.recipes import RECIPES
from benchmarks.studies.recipes.scale import SIZES, Scale, Size
from benchmarks.studies.study import Cell, Claim, Finished, Study, execute_study, has_ended, seed_experiment
from benchmarks.studies.tables import (
    describe_findings,
    format_caption,
    format_grid,
    format_latex,
    make_entries,
    make_frame,
)
from fedraa.api import run
from fedraa.components.imports import import_object
from fedraa.config.experiment import Experiment
from fedraa.data import FederatedDataset
from fedraa.engine.build import build_run
from fedraa.errors import InputError
from fedraa.models.build import MODELS
from fedraa.rundir.file_names import CONFIG, EVALS, EVENTS, MODEL, SUMMARY
from fedraa.rundir.history import History
from fedraa.rundir.run_lock import LOCK, lock_directory
from fedraa.settings.resolve import resolve_method


def linear(classes: int) -> nn.Module:
    """Return a softmax regression on the digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


SPEED = Metric("steps", lambda history: 0.0, "less", ".1f")


def study(rows: dict[str, dict[str, float]], *, metric: Metric = ACCURACY, seeds=(0, 1, 2), claims=()) -> Study:
    """Return a study of one column. The first row is the reference, and `rows` has the paper's numbers."""
    cells = [Cell(row, Experiment(method="fedavg"), paper=paper) for row, paper in rows.items()]
    return Study("s", "A study", cells, (metric,), next(iter(rows)), claims=claims, seeds=seeds)


def measured(values: dict[str, tuple[float, ...]], metric: Metric = ACCURACY) -> pd.DataFrame:
    lines = []
    for row, by_seed in values.items():
        lines += [(row, "", seed, metric.name, value) for seed, value in enumerate(by_seed)]
    return pd.DataFrame(lines, columns=["row", "column", "seed", "metric", "value"])


def test_mean_has_students_interval_and_paired_test_marks_differing_rows():
    # n = 3, s = 1: t(0.975, 2) = 4.30265, so 4.30265 / sqrt(3) = 2.4841. (4, 5, 7) against (1, 2, 3): differences 3, 3
    # and 4, t = (10 / 3) / (1 / 3) = 10 with 2 degrees of freedom, p = 1 - 10 / sqrt(102) = 0.009852.
    of = study({"a": {}, "b": {}, "c": {}})
    numbers = make_entries(of, measured({"a": (1, 2, 3), "b": (4, 5, 7), "c": (1, 2, 4)}))
    assert numbers[0].half_width == pytest.approx(2.4841, abs=1e-4)
    assert numbers[1].p == pytest.approx(0.009852, abs=1e-6)
    assert [row[1] for row in format_grid(of, numbers)[1]] == ["2.00 ± 2.48", "5.33 ± 3.79*", "2.33 ± 3.79"]
    assert "n = 3 seeds" in format_caption(of, numbers)
    assert "differs from a" in format_caption(of, numbers)


def test_caption_states_that_there_is_only_one_seed():
    of = study({"a": {}, "b": {}}, seeds=(7,))
    numbers = make_entries(of, measured({"a": (1,), "b": (9,)}))
    assert "ONE seed (7)" in format_caption(of, numbers)
    assert format_grid(of, numbers)[1] == [["a", "1.00"], ["b", "9.00"]]


def test_findings_state_which_orders_of_the_paper_hold():
    of = study({"a": {"accuracy %": 90.0}, "b": {"accuracy %": 80.0}, "c": {"accuracy %": 70.0}})
    numbers = make_entries(of, measured({"a": (5, 5.1, 5.2), "b": (9, 9.1, 9.2), "c": (1, 5, 8)}))
    # a > c (5.1, 4.67) and b > c (9.1, 4.67) hold within the noise; a > b is reversed beyond it.
    first, second = describe_findings(of, numbers)
    assert first == "accuracy %: 2 of the paper's 3 orders hold here, 0 of them beyond the noise."
    assert "in the paper a (90) is ahead of b (80); here a 5.10, b 9.10" in second
    assert "within the noise" not in second


def test_smaller_times_are_better_and_an_unreached_target_is_worst():
    rows = {"a": {"steps": 10.0}, "b": {"steps": 20.0}}
    of = study(rows, metric=SPEED, claims=(Claim("b", "a", "steps", "b is faster"),))
    numbers = make_entries(of, measured({"a": (3, 4, 5), "b": (3, 4, float("inf"))}, SPEED))
    holds, claimed = describe_findings(of, numbers)
    assert holds == "steps: 1 of the paper's 1 orders hold here, 0 of them beyond the noise."
    assert claimed.startswith("b is faster: is not decided here")
    assert format_grid(of, numbers)[1][1] == ["b", "reached in 2 of 3 [20]"]


def test_claim_is_decided_only_by_a_significant_difference():
    places = {"A": ("a", "b"), "B": ("b", "a"), "C": ("a", "c")}
    claims = [Claim(better, worse, ACCURACY.name, name) for name, (better, worse) in places.items()]
    of = study({"a": {}, "b": {}, "c": {}}, claims=claims)
    numbers = make_entries(of, measured({"a": (9, 9.1, 9.3), "b": (5, 5.1, 5.2), "c": (1, 9, 12)}))
    verdicts = [sentence.partition(" here")[0] for sentence in describe_findings(of, numbers)]
    assert verdicts == ["A: holds", "B: DOES NOT HOLD", "C: is not decided"]


def test_findings_without_paper_orders_compare_rows_with_the_reference():
    of = study({"a": {}, "b": {}, "c": {}, "d": {}})
    numbers = make_entries(
        of, measured({"a": (5, 5.1, 5.2), "b": (9, 9.1, 9.2), "c": (1, 1.1, 1.2), "d": (5, 5.1, 5.3)})
    )
    assert describe_findings(of, numbers) == [
        "accuracy %: better than a (5.10 ± 0.25) beyond the noise: b (9.10); worse: c (1.10)."
    ]


def test_findings_name_the_best_column_of_a_row_and_warn_at_the_grid_edge():
    cells = [Cell("a", Experiment(method="fedavg"), column) for column in ("lr 1", "lr 2", "lr 3")]
    of = Study("s", "A study", cells, (ACCURACY,), "a", seeds=(0,), fixed="lr 2")
    lines = [("a", f"lr {n}", 0, ACCURACY.name, float(n)) for n in (1, 2, 3)]
    values = pd.DataFrame(lines, columns=["row", "column", "seed", "metric", "value"])
    assert describe_findings(of, make_entries(of, values))[0] == (
        "a: best at lr 3 (at the edge of the grid, so a better value may lie outside), accuracy % 3.00 (2.00 at lr 2)."
    )


def test_only_the_reference_and_the_best_of_many_rows_have_a_colour():
    of = study({f"row {n}": {} for n in range(40)})
    numbers = make_entries(of, measured({f"row {n}": (n, n + 0.1) for n in range(40)}))
    looks = _choose_styles(of, numbers)
    assert list(looks) == [*(f"row {n}" for n in range(39, 40 - NAMED, -1)), "row 0"]
    assert len(set(looks.values())) == NAMED


def test_failed_runs_are_counted_and_excluded_from_the_mean():
    of = study({"a": {}, "b": {}})
    numbers = make_entries(of, measured({"a": (1, 3, float("nan")), "b": (float("nan"),) * 3}))
    assert [entry.text.split(" ")[0] for entry in numbers] == ["2.00", "failed"]
    assert numbers[0].text.endswith("(1 failed)")


def test_csv_has_multiples_of_the_reference():
    of = study({"a": {"accuracy %": 80.0}, "b": {"accuracy %": 40.0}})
    lines = make_frame(of, make_entries(of, measured({"a": (8, 8, 8), "b": (2, 2, 2)})))
    assert lines["of_reference"].tolist() == [1, 0.25]
    assert lines["paper_of_reference"].tolist() == [1, 0.5]


def test_latex_table_escapes_special_characters():
    of = study({"a_1 (50 %)": {}})
    text = format_latex(of, make_entries(of, measured({"a_1 (50 %)": (1, 2, 3)})))
    assert r"a\_1 (50 \%) & 2.00 $\pm$ 2.48 \\" in text


def test_largest_eigenvalue_has_the_largest_magnitude() -> None:
    """The matrix [[2, 1], [1, 2]] has the eigenvalues 1 and 3, and 2 - 5 of it has 3 - 5 and 1 - 5."""
    matrix = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    start = draw_direction([torch.zeros(2)], torch.Generator().manual_seed(0))
    assert float(start[0].norm()) == pytest.approx(1)
    assert find_largest_eigenvalue(lambda vector: [matrix @ vector[0]], start) == pytest.approx(3, rel=1e-2)
    shifted = matrix - 5 * torch.eye(2)
    assert find_largest_eigenvalue(lambda vector: [shifted @ vector[0]], start) == pytest.approx(-4, rel=1e-2)


def test_flatness_of_a_softmax_regression_agrees_with_its_hessian(tmp_path: Path) -> None:
    experiment = Experiment(dataset="digits", model=f"{__name__}:linear", lr=0.1, method="fedavg", rounds=1, quiet=True)
    experiment = experiment.model_copy(update={"engine": "local", "out": tmp_path / "run", "local_steps": 20})
    run(experiment)
    data = build_run(History(tmp_path / "run").experiment).data.dataset
    rows = np.linspace(0, len(data.y_train) - 1, FLATNESS_SAMPLES).astype(int)
    x = np.hstack([data.x_train[rows].reshape(len(rows), -1), np.ones((len(rows), 1))]).astype(np.float64)
    state = torch.load(tmp_path / "run" / MODEL, weights_only=True)
    weight, bias = (value.numpy().astype(np.float64) for value in state.values())
    logits = x @ np.hstack([weight, bias[:, None]]).T
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    # The Hessian of the cross-entropy is the mean of (diag(p) - p p^T) x (x x^T).
    inner = share[:, :, None] * (np.eye(10) - share[:, None, :])
    hessian = np.einsum("nij,na,nb->iajb", inner, x, x, optimize=True).reshape(10 * x.shape[1], -1) / len(rows)
    eigenvalue, rise = measure_flatness(tmp_path / "run")
    assert eigenvalue == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=0.02)
    assert rise > 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RECIPES)
def test_methods_accept_the_options_of_every_recipe(name: str, size: Size):
    planned = RECIPES[name](Scale(size, Path("data")))
    assert planned.name == name
    for cell in planned.cells:
        resolve_method(cell.experiment)
        assert cell.experiment.model in MODELS or callable(import_object("model", cell.experiment.model))


@pytest.mark.parametrize("size", ["quick", pytest.param("standard", marks=pytest.mark.slow)])
def test_every_cell_on_images_can_be_run(size: Size, small_data: Path):
    """The model of every cell has enough units for its submodels."""
    cells = list[Cell]()
    for recipe in RECIPES.values():
        cells += recipe(Scale(size, small_data)).cells
    kinds = {
        (cell.experiment.model, cell.experiment.method, cell.experiment.submodel, cell.experiment.capacities): cell
        for cell in cells
        if "cifar10-subset" in cell.experiment.dataset
    }
    assert len(kinds) > 20
    for cell in kinds.values():
        small = {"clients": min(100, cell.experiment.client_count), "partition": "iid", "participation": None}
        build_run(cell.experiment.model_copy(update=small))


def test_wrong_arguments_are_refused_before_anything_runs(tmp_path: Path):
    with refuses("study", got="nothing"):
        run_study("nothing", RunOptions(quick=True, out=tmp_path))
    with refuses("quick"):
        run_study("subdismo_delta", RunOptions(out=tmp_path))
    with refuses("data_dir", "cifar10-subset"):
        run_study("subdismo_delta", RunOptions(quick=True, out=tmp_path))
    with refuses("seeds", got=(1, 1)):
        run_study("subdismo_delta", RunOptions(quick=True, data_dir=tmp_path, seeds=(1, 1), out=tmp_path))
    assert not list(tmp_path.iterdir())


def test_command_of_a_study_lists_seeds_or_names_a_long_range() -> None:
    command = "python -m benchmarks run s --quick --seeds"
    assert command_line("s", "quick", RunOptions(seeds=(0, 1, 2))) == f"{command} 0 1 2"
    assert command_line("s", "quick", RunOptions(seeds=tuple(range(5, 30)))) == f"{command} $(seq 5 29)"
    assert command_line("s", "quick", RunOptions(seeds=(*range(25), 30))).endswith("23 24 30")


def test_changed_cell_has_another_directory(tmp_path: Path):
    cell, changed = (Cell("a", Experiment(method="fedavg", lr=lr)) for lr in (0.1, 0.2))
    assert seed_experiment(cell, 0, tmp_path).out == seed_experiment(cell, 0, tmp_path).out
    assert (
        len(
            {
                seed_experiment(cell, 0, tmp_path).out,
                seed_experiment(changed, 0, tmp_path).out,
                seed_experiment(cell, 1, tmp_path).out,
            }
        )
        == 3
    )


def test_missing_files_of_a_dataset_end_a_study_before_its_first_run(tmp_path: Path):
    with pytest.raises(InputError, match="cifar10-subset"):
        run_study("subdismo_delta", RunOptions(quick=True, data_dir=tmp_path, out=tmp_path / "out"))
    assert not list((tmp_path / "out").rglob("config.json"))


# The study has three runs. The second run is long enough to be killed before its end.
GRID = [Cell(row, Experiment(method="fedavg", hidden=(8,), rounds=n)) for row, n in (("a", 1), ("b", 60), ("c", 1))]
SMALL = Study("small", "Small", GRID, (ACCURACY,), "a", seeds=(0,))
KILLED = """
from pathlib import Path
from tests.unit.benchmarks.test_study import SMALL
from benchmarks.studies.study import execute_study
execute_study(SMALL, Path({out!r}), 1, lambda run, left: None)
"""


@pytest.mark.slow
def test_killed_study_continues_without_repeating_finished_runs(tmp_path: Path):
    first, second, third = (seed_experiment(cell, 0, tmp_path).out for cell in GRID)
    root = Path(__file__).parents[3]
    process = subprocess.Popen([sys.executable, "-c", KILLED.format(out=str(tmp_path))], cwd=root)
    deadline = time.monotonic() + 120
    while not (second / EVALS).exists() or len((second / EVALS).read_text().splitlines()) < 5:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (first / SUMMARY).exists()
    assert not (second / SUMMARY).exists()
    assert not third.exists()
    before = (first / EVENTS).stat().st_mtime_ns

    seen: list[Finished] = []
    runs = execute_study(SMALL, tmp_path, 1, lambda run, left: seen.append(run))
    assert [run.cell.row for run in seen] == ["b", "c"]
    assert (first / EVENTS).stat().st_mtime_ns == before
    assert [run.failure for run in runs] == [None, None, None]
    assert [History(run.directory).summary["steps"] for run in runs] == [1, 60, 1]
    assert execute_study(SMALL, tmp_path, 1, lambda run, left: pytest.fail("it ran again")) == runs


@pytest.mark.slow
def test_unfinished_run_of_another_commit_starts_again(tmp_path: Path):
    only = Study("only", "Only", GRID[:1], (ACCURACY,), "a", seeds=(0,))
    (first,) = execute_study(only, tmp_path, 1, lambda run, left: None)
    (first.directory / SUMMARY).unlink()
    config = json.loads((first.directory / CONFIG).read_text())
    (first.directory / CONFIG).write_text(json.dumps(config | {"commit": "another", "resolved": {}}))
    (again,) = execute_study(only, tmp_path, 1, lambda run, left: None)
    assert History(again.directory).summary["steps"] == 1
    assert History(again.directory).config == config


def test_names_of_runs_do_not_depend_on_the_spelling_of_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    monkeypatch.chdir(tmp_path)
    names = set()
    for spelling in ("data", "data/", "./data", "link", str(tmp_path / "data"), "data/../data"):
        data_dir = RunOptions(data_dir=Path(spelling)).data_dir
        experiment = Scale("quick", data_dir).experiment("cifar10-subset", method="fedavg")
        names.add(seed_experiment(Cell("a", experiment), 0, tmp_path).out)
    assert len(names) == 1


def test_second_study_in_the_same_directory_is_refused(tmp_path: Path):
    with lock_directory(tmp_path, "running it"), refuses("out", str(tmp_path)):
        execute_study(SMALL, tmp_path, 1, lambda run, left: pytest.fail("it ran"))
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def clients_of_data() -> FederatedDataset:
    """Return data that define two clients."""
    samples = (np.eye(4, dtype=np.float32), np.arange(4) % 2)
    return FederatedDataset.of_clients(
        "two", {"a": samples, "b": samples}, None, test_of_clients={"a": samples}, classes=2
    )


def test_a_finished_run_on_clients_of_the_data_is_not_repeated(tmp_path: Path):
    named = Experiment(method="fedavg", dataset=f"{__name__}:clients_of_data", hidden=(8,), rounds=1)
    cell = Cell("a", named)
    execute_study(Study("s", "A study", [cell], (ACCURACY,), "a", seeds=(0,)), tmp_path, 1, lambda run, left: None)
    assert has_ended(seed_experiment(cell, 0, tmp_path))
    longer = Cell("a", named.model_copy(update={"rounds": 2}))
    assert not has_ended(seed_experiment(longer, 0, tmp_path))


def test_finished_run_of_a_changed_method_runs_again(tmp_path: Path):
    """The experiment is the same, but its method has changed, as between two versions of the code."""
    only = Study("only", "Only", GRID[:1], (ACCURACY,), "a", seeds=(0,))
    (first,) = execute_study(only, tmp_path, 1, lambda run, left: None)
    config = json.loads((first.directory / CONFIG).read_text())
    was = config["method"] | {"local": config["method"]["local"] | {"momentum": 0.7}}
    (first.directory / CONFIG).write_text(json.dumps(config | {"method": was}))
    (again,) = execute_study(only, tmp_path, 1, lambda run, left: None)
    assert History(again.directory).config == config


@pytest.mark.slow
def test_cell_that_cannot_run_fails_alone_and_a_study_of_such_cells_is_refused(tmp_path: Path):
    narrow = Cell("ist", Experiment(method="ist", clients=10, hidden=(4,), rounds=1))
    both = Study("both", "Both", [GRID[0], narrow], (ACCURACY,), "a", seeds=(0,))
    fits, fails = execute_study(both, tmp_path, 1, lambda run, left: None)
    assert fits.failure is None
    assert fails.failure is not None
    assert "10 in one round each need units of their own" in fails.failure
    misfits = Study("misfits", "Misfits", [narrow], (ACCURACY,), "ist", seeds=(0,))
    with refuses("study"):
        execute_study(misfits, tmp_path, 1, lambda run, left: None)
