"""Twelve custom components in a folder outside any checkout: every engine, every way to pass them, kill, resume.

The components and the script are in tests/fixtures/own_parts/my_ext.py.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from same_run import same

import fedraa as fl
from fedraa.cli.main import main
from fedraa.rundir.history import History

pytestmark = pytest.mark.cluster

SOURCE = Path(__file__).parents[1] / "fixtures" / "own_parts" / "my_ext.py"
FEDRAA = [str(Path(sys.executable).with_name("fedraa"))]
SCRIPT = [sys.executable, "study.py"]
NAMES = ("scheduled", "by-client", "trimmed", "rounds")
PARTS = {
    "scheduled": ("LowestLoss", "gentle", "ByParity", "Top"),
    "by-client": ("ByClient",),
    "trimmed": ("TrimmedMean",),
    "rounds": ("Signs", "Lasso", "Window", "AllButOne", "Slowing"),
}
COMMON = ["--clients", "4", "--local-epochs", "1", "--hidden", "16", "--quiet"]
FLAGS = {
    "scheduled": (
        "--method fed-raa --staleness my_ext:gentle --partition my_ext:ByParity(by_chance=0.3) "
        "--scheduler my_ext:LowestLoss(every=4) --metrics my_ext:Top(k=3) --updates 1600 --checkpoint-every 40"
    ),
    "by-client": ("--method fed-raa --async-rule my_ext:ByClient(mixing=0.5) --updates 400 --checkpoint-every 40"),
    "trimmed": "--method oap --aggregator my_ext:TrimmedMean --rounds 100 --checkpoint-every 10",
    "rounds": (
        "--method fedavg --compress my_ext:Signs --gradient-transforms my_ext:Lasso(weight=0.0001) "
        "--submodel my_ext:Window --participation my_ext:AllButOne --server-optimizer my_ext:Slowing "
        "--rounds 100 --checkpoint-every 10"
    ),
}
FIELDS = {
    "scheduled": ["partition", "scheduler", "staleness", "metrics"],
    "by-client": ["async_rule"],
    "trimmed": ["aggregator"],
    "rounds": ["compress", "gradient_transforms", "submodel", "participation", "server_optimizer"],
}
UNCHECKED = {"LowestLoss", "gentle", "ByClient", "TrimmedMean", "Signs", "Window", "AllButOne", "Slowing"}
STOPS = {"scheduled": ["--callbacks", "my_ext:Enough(bound=0.9)"]}
FILE = """
method = "fed-raa"
staleness = "my_ext:gentle"
metrics = ["my_ext:Top(k=3)"]
updates = 10
checkpoint_every = 40

[scheduler]
kind = "my_ext:LowestLoss"
every = 4

[partition]
kind = "my_ext:ByParity"
by_chance = 0.3
"""


def mark_slow_except(*quick: str) -> list[Any]:
    """Return all ways to run the script; those that are not `quick` are marked slow."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.slow]) for name in NAMES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a user's folder with one file, both as a script and as a module, for runs in separate processes."""
    folder = tmp_path_factory.mktemp("own")
    for name in ("study.py", "my_ext.py"):
        shutil.copy(SOURCE, folder / name)
    (folder / "mine.toml").write_text(FILE)
    return folder


def in_one_process(folder: Path, name: str) -> History:
    """Return the script's reference run, which is made once."""
    if not (folder / f"local-{name}").exists():
        said = command(folder, [*SCRIPT, "run", f"local-{name}", name, "engine=local"]).split()
        assert said[:2] == {"scheduled": ["callback", "268"], "by-client": ["steps", "400"]}.get(name, ["steps", "100"])
    return History(folder / f"local-{name}")


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(fl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def command(folder: Path, words: list[str]) -> str:
    """Return the output of a command in the folder."""
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_and_kill(folder: Path, words: list[str], out: str, commits: int = 90) -> None:
    """Run the command, and kill its driver when the log in `out` has this number of commits."""
    process = subprocess.Popen(words, cwd=folder, env=environment())
    log, give_up = folder / out / "events.jsonl", time.monotonic() + 120
    while not log.exists() or log.read_text().count('"commit"') < commits:
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / out / "summary.json").exists()


def recorded_experiment(folder: Path, out: str) -> str:
    return json.dumps(json.loads((folder / out / "config.json").read_text())["experiment"])


@pytest.mark.parametrize("name", mark_slow_except("scheduled"))
def test_killed_script_resumes_if_it_passes_its_custom_components_again(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"killed-{name}"
    run_and_kill(folder, [*SCRIPT, "run", out, name, "engine=local"], out)
    monkeypatch.chdir(folder)
    assert main(["resume", out]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    again = re.search(r"fedraa\.resume\('killed-[\w-]+', (.*)\)$", said)
    assert again is not None, said
    assert sorted(again[1].split(", ")) == sorted(f"{field}=..." for field in FIELDS[name])
    command(folder, [*SCRIPT, "resume", out, name])
    same(folder / out, in_one_process(folder, name))


@pytest.mark.parametrize("name", mark_slow_except())
def test_replay_report_and_plan_name_the_custom_components(folder: Path, name: str) -> None:
    in_one_process(folder, name)
    said = command(folder, [*FEDRAA, "replay", f"local-{name}"])
    command(folder, [*FEDRAA, "report", f"local-{name}", "--out", f"{name}.html"])
    page, config = (folder / f"{name}.html").read_text(), recorded_experiment(folder, f"local-{name}")
    plan = command(folder, [*FEDRAA, "plan", *COMMON, *FLAGS[name].split()])
    assert "consistent" in said
    for part in PARTS[name]:
        assert f"__main__:{part}" in config
        assert part in page
        assert f"my_ext:{part}" in plan
        # Replay cannot check these components, because the log lacks their decisions.
        assert bool(re.search(rf"__main__:{part} .*not checked", said)) == (part in UNCHECKED)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_custom_components_of_a_script_give_the_same_run_on_ray(folder: Path, name: str, workers: int) -> None:
    out = f"ray-{name}-{workers}"
    command(folder, [*SCRIPT, "run", out, name, "engine=ray", f"workers={workers}"])
    same(folder / out, in_one_process(folder, name))


@pytest.mark.slow
def test_killed_run_of_a_file_with_component_paths_resumes_on_ray(folder: Path) -> None:
    words = [*FEDRAA, "run", "--config", "mine.toml", *COMMON, *STOPS["scheduled"], "--updates", "1600"]
    run_and_kill(folder, [*words, "--workers", "2", "--out", "file"], "file")
    command(folder, [*FEDRAA, "resume", "file", *STOPS["scheduled"], "--trust", "--quiet"])
    same(folder / "file", in_one_process(folder, "scheduled"))
    for part in ("my_ext:LowestLoss", "my_ext:gentle", "my_ext:ByParity(by_chance=0.3)", "my_ext:Top(k=3)"):
        assert part in recorded_experiment(folder, "file")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_killed_command_with_component_paths_can_be_resumed(folder: Path, name: str) -> None:
    words = [*FEDRAA, "run", *COMMON, *FLAGS[name].split(), *STOPS.get(name, []), "--engine", "local"]
    run_and_kill(folder, [*words, "--out", f"flags-{name}"], f"flags-{name}")
    command(folder, [*FEDRAA, "resume", f"flags-{name}", *STOPS.get(name, []), "--trust", "--quiet"])
    same(folder / f"flags-{name}", in_one_process(folder, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_killed_script_on_ray_can_be_resumed(folder: Path, name: str) -> None:
    run_and_kill(
        folder,
        [*SCRIPT, "run", f"ray-killed-{name}", name, "engine=ray", "workers=2"],
        f"ray-killed-{name}",
    )
    command(folder, [*SCRIPT, "resume", f"ray-killed-{name}", name])
    same(folder / f"ray-killed-{name}", in_one_process(folder, name))
