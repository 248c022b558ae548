"""The command line: wrong input ends with exit code 2 and one error line, before anything is started or written."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from actors.cluster import own_cluster
from fedraa import Experiment
from fedraa.cli.main import main
from fedraa.engine import memory_check

DIGITS = {"x_train": (40, 8), "x_test": (10, 8)}


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with one bad file of each kind."""
    rng = np.random.default_rng(0)
    good = {name: rng.normal(size=shape).astype(np.float32) for name, shape in DIGITS.items()}
    good |= {name: np.arange(size) % 4 for name, size in (("y_train", 40), ("y_test", 10))}
    np.savez(tmp_path / "good.npz", **good)
    np.savez(tmp_path / "missing.npz", x_train=good["x_train"])
    np.savez(tmp_path / "nan.npz", **good | {"x_train": np.full((40, 8), np.nan, np.float32)})
    (tmp_path / "garbage.npz").write_bytes(b"not an archive")
    (tmp_path / "short.csv").write_text("compute\n1\n2\n")
    (tmp_path / "words.csv").write_text("compute\n" + "quick\n" * 10)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Twelve kinds of bad input. Some kinds have several forms.
BAD = {
    "unknown method": ("--method fedmagic", ["method", "'fedmagic'", "fedavg"]),
    "unknown dataset": ("--dataset mnits", ["dataset", "'mnits'", "digits"]),
    "ratios that do not sum to 1": ("--ratios 0.5 0.6", ["ratios", "1.1", "sum to 1"]),
    "no clients": ("--clients 0", ["clients", "0", "1"]),
    "negative compute speed": ("--compute=-1:0.5,3:0.5", ["compute", "-1", "above 0"]),
    "more fragments than neurons": ("--hidden 3 --fragments 5", ["ratios", "3 units", "fewer"]),
    "empty client": ("--clients 2000", ["clients", "2000", "1437", "fewer clients"]),
    "clients without end": ("--clients 1000000000000", ["clients", "1437"]),
    "neurons without end": ("--hidden 4611686018427387904", ["hidden", "4611686018427387904", "memory"]),
    "threads without end": ("--threads-per-worker 4611686018427387904", ["threads_per_worker", "1024"]),
    "no such npz": ("--dataset none.npz", ["dataset", "none.npz", "no such file"]),
    "unreadable npz": ("--dataset garbage.npz", ["dataset", "garbage.npz", "numpy.savez"]),
    "malformed npz": ("--dataset missing.npz", ["dataset", "missing.npz", "y_train, x_test, y_test"]),
    "no such csv": ("--compute none.csv", ["compute", "none.csv", "no such file"]),
    "malformed csv": ("--compute words.csv", ["compute", "words.csv line 2", "quick"]),
    "csv of the wrong length": ("--compute short.csv", ["compute", "2 devices", "10"]),
    "out in use": ("--out used", ["out", "used", "new or empty"]),
    "out is a file": ("--out good.npz", ["out", "good.npz", "new or empty"]),
    "no workers": ("--workers 0", ["workers", "0", "1"]),
    "infeasible delay bound": ("--delay-bound 0.01", ["delay_bound", "0.01", "cheapest fragment 0", "derived bound"]),
    "NaN in the data": ("--dataset nan.npz", ["dataset 'nan'", "x_train row 0"]),
    "target accuracy over 1": ("--target-accuracy 1.5", ["target_accuracy", "1.5", "1"]),
    "flag of another method": ("--method fedavg --mixing 0.5", ["mixing", "0.5", "fedavg"]),
    "unknown flag": ("--clint 3", ["--clint", "no such flag"]),
    "not a number": ("--clients many", ["clients", "'many'"]),
    "not a choice": ("--clock sundial", ["clock", "'sundial'", "virtual"]),
    "no data folder": ("--dataset mnist", ["data_dir", "mnist", "folder"]),
}


def tree(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


COMPARE = "compare fed-raa fedavg"
# A plan writes nothing. The messages of compare about methods and flags of other methods have separate tests.
CASES = [("run", kind) for kind in BAD]
CASES += [("plan", kind) for kind in BAD if not kind.startswith("out ")]
CASES += [(COMPARE, kind) for kind in BAD if kind not in ("unknown method", "flag of another method")]
# The other kinds need `--engine local`, because with the default engine `run` starts a cluster before it reads the
# data.
WITH_RAY = ("no workers", "unknown dataset")


@pytest.mark.parametrize(("command", "kind"), CASES)
def test_bad_input_exits_with_one_error_line_and_writes_nothing(
    command: str, kind: str, work_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags, said = BAD[kind]
    if command == "run" and kind not in WITH_RAY:
        flags += " --engine local"
    before = tree(work_folder)
    assert main([*command.split(), *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedraa: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for part in said:
        assert part in err
    assert tree(work_folder) == before


def test_workers_beyond_the_memory_are_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, work_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_cluster, "prestart_cluster", lambda cpus: pytest.fail(f"Ray starts with {cpus} CPUs"))
    monkeypatch.setattr(memory_check, "free_memory", lambda: 10.0 * memory_check.PROCESS_BYTES)
    assert main(["run", "--workers", "1000000000000"]) == 2
    assert capsys.readouterr().err.startswith("fedraa: workers: got 1000000000000; ")


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ([], "command: "),
        (["walk"], "walk: "),
        (["replay", "nowhere"], "run: nowhere "),
        (["compare"], "methods: "),
    ],
)
def test_wrong_command_line_names_the_wrong_argument(
    arguments: list[str], start: str, work_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"fedraa: {start}")


def test_a_run_prints_a_table_and_writes_its_directory(work_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--updates", "60", "--engine", "local", "--out", "first"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    summary = json.loads((work_folder / "first" / "summary.json").read_text())
    assert "60 (60 tasks)" in out
    assert f"{summary['accuracy']:.4f}" in out
    assert summary["model_sha256"][:16] in out
    assert "first" in out
    written = {"config.json", "events.jsonl", "evals.csv", "model.pt", "summary.json"}
    assert written <= {path.name for path in (work_folder / "first").iterdir()}


def test_times_of_physical_devices_have_their_unit(work_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method fedavg --rounds 1 --clients 2 --compute 1e9:1 --units physical --engine local"
    assert main(["plan", *flags.split()]) == 0
    plan = capsys.readouterr().out
    assert main(["run", *flags.split(), "--out", "physical"]) == 0
    time = json.loads((work_folder / "physical" / "summary.json").read_text())["time"]
    assert f" {time:.4g} s " in capsys.readouterr().out
    assert "cost of a task in s" in plan
    assert re.search(r"expected +1 round of [0-9.]+ s in time [0-9.]+ s", plan)


def test_a_quiet_run_prints_nothing(work_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--updates", "5", "--engine", "local", "--quiet", "--out", "first"]) == 0
    assert capsys.readouterr() == ("", "")


def test_runs_without_out_get_new_directories(work_folder: Path) -> None:
    flags = "--method fedavg --rounds 1 --engine local --quiet --dataset good.npz --clients 4"
    for _ in range(2):
        assert main(["run", *flags.split()]) == 0
    assert sorted(path.name for path in (work_folder / "runs").iterdir()) == ["fedavg-good-0", "fedavg-good-0-2"]


def test_flags_reach_the_configuration_of_the_run(work_folder: Path) -> None:
    flags = (
        "--method fed-raa --dataset good.npz --model mlp --hidden 20 --clients 4 --ratios 0.25 0.75 "
        "--duration-jitter 0.2 --compute 1:0.5,3:0.5 --scheduler random --updates 6 "
        "--seed 3 --engine local --clock virtual --out run "
        "--partition dirichlet --dirichlet 5 --mixing 0.4 --staleness polynomial --prox-mu 0.1 "
        "--override local.sam_rho=0.05 local.full_rate=True "
        "--local-steps 2 --batch-size 4 --lr 0.1 --momentum 0 --eval-every 2 --device cpu --quiet"
    )
    assert main(["run", *flags.split()]) == 0
    experiment = json.loads((work_folder / "run" / "config.json").read_text())["experiment"]
    words = [word for word in flags.split() if word != "--quiet"]
    for flag, value in pairwise(words):
        if flag.startswith("--") and flag not in ("--ratios", "--hidden", "--override"):
            assert str(experiment[flag.lstrip("-").replace("-", "_")]) in (value, f"{value}.0")
    assert (experiment["ratios"], experiment["hidden"], experiment["quiet"]) == ([0.25, 0.75], [20], True)
    assert experiment["override"] == {"local.sam_rho": 0.05, "local.full_rate": True}


def test_every_field_of_an_experiment_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help-all"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"--{field.replace('_', '-')}" in shown for field in Experiment.model_fields)


@pytest.mark.parametrize("module", ["fedraa", "fedraa.cli.main"])
def test_command_runs_as_a_python_module(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "run", "--clients", "0"], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 2
    assert done.stderr.startswith("fedraa: clients: got 0")


def test_help_needs_neither_torch_nor_ray() -> None:
    code = "import sys, fedraa.cli.main as c\ntry: c.main(['--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'ray', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_worker_imports_nothing_slow_that_it_does_without() -> None:
    code = "import sys, actors.worker.worker; sys.exit(not {'pandas', 'matplotlib', 'sklearn'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_status_without_runs_prints_a_sentence(work_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "no run is in runs; name the run directories\n"


def test_resume_passes_the_place_where_a_run_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("fedraa.api.resume", lambda run, **options: calls.append((run, options)))
    place = {"engine": "local", "workers": 3, "address": "auto", "device": "cpu", "data_dir": Path("data")}
    flags = [part for name, value in place.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["resume", "runs/one", "--quiet", *flags]) == 0
    assert main(["resume", "runs/two", "--quiet"]) == 0
    (first, options), (second, defaults) = calls
    assert (first, second) == (Path("runs/one"), Path("runs/two"))
    assert options == defaults | place
    assert not place.keys() & defaults.keys()
