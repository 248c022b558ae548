"""CONTRIBUTING.md: its components run as they are printed, and its method equals the file in the code."""

import re
from pathlib import Path

import pytest

from fedraa.cli.main import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
COMPONENTS = next(iter(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)))
RUNS = [
    "--method fed-raa --updates 6 --scheduler {0}:HighestLoss --staleness {0}:slow --partition {0}:ByParity "
    "--metrics {0}:Top3 --callbacks {0}:Enough",
    "--method fedasync --updates 6 --async-rule {0}:LessOfTheFirst --compress {0}:Half "
    "--next-client {0}:LeastTrained --concurrency 2",
    "--method fedavg --rounds 2 --aggregator {0}:Median --server-optimizer {0}:SignStep "
    "--gradient-transforms {0}:Lasso --participation {0}:Odd",
    "--method fedavg --rounds 2 --submodel {0}:FirstHalf",
]
SMALL = "--engine local --clients 4 --hidden 8 --local-steps 1"
MODULE = "contributing_ext"


@pytest.mark.parametrize("flags", RUNS)
def test_components_run_and_replay(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(COMPONENTS)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["run", *flags.format(MODULE).split(), *SMALL.split(), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    assert main(["replay", str(tmp_path / "run")]) == 0


def test_runs_use_every_component() -> None:
    printed = set(re.findall(r"^(?:class|def) (\w+)", COMPONENTS, re.MULTILINE))
    assert printed == set(re.findall(r":(\w+)", " ".join(RUNS)))


def test_named_files_exist() -> None:
    named = re.findall(r"`((?:fedraa|schedulers|tests|docs|benchmarks)/[\w/.]+\.\w+)`", TEXT)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_diffs_of_the_walkthrough_equal_the_files() -> None:
    files = ("fedraa/methods/ringmaster.py", "tests/unit/server/test_async_rules.py")
    written = "\n".join((ROOT / name).read_text() for name in files)
    blocks = re.findall(r"```diff\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == len(files)
    for block in blocks:
        assert re.sub(r"^\+", "", block, flags=re.MULTILINE) in written
