"""The examples run at a tiny size, and print the quality of the model."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# These packages are in extras.
NEEDS = {"hugging_face": "datasets", "tuning": "optuna"}
TEN = [
    *("own_model", "own_data", "own_scheduler", "own_rule", "own_metric"),
    *("lora", "next_character", "tuning", "sweep", "cluster_job"),
]


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("own_model", "", "accuracy "),
        ("own_data", "", r"accuracy \d.* worst sensor \d"),
        ("own_scheduler", "", "custom: accuracy "),
        ("own_rule", "", "custom: accuracy "),
        ("own_metric", "", r"callback after \d+ of 400 "),
        ("tuning", "", r"best of fedavg: \{'lr': "),
        ("sweep", "", "mean staleness"),
        ("cluster_job", "--engine local --updates 60", r"runs/job: .*steps, accuracy \d"),
        ("regression", "--time 2 --clients 4", "fedavg: mse "),
        ("segmentation", "--time 0.1 --images 40", "fedavg: mean IoU "),
        ("next_character", "--time 0.1 --roles 3", "LSTM, fedavg: perplexity "),
        ("lora", "--roles 2 --steps 5 --rounds 1 --width 8 --rank 2", "LoRA    flora "),
        ("augmentation", "--time 0.1 --count 80", r"normalize, crop\(padding=2\), flip: accuracy "),
        ("hugging_face", "--time 0.5 --reviews 80 --authors 3", "fedavg: accuracy "),
        ("larger_than_memory", "--megabytes 4 --updates 20 --engine local", r"^4 MB .*200 clients: accuracy \d"),
    ],
)
def test_an_example_runs(
    name: str,
    flags: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    monkeypatch.chdir(tmp_path)
    # The arguments of a script.
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [name, *flags.split()])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(expected, capsys.readouterr().out, re.MULTILINE)


# `test_from_scratch.py` tests the programs that are written from scratch.
SHORT = [path for path in sorted(EXAMPLES.glob("*.py")) if not path.stem.endswith("_from_scratch")]


@pytest.mark.parametrize("example", SHORT, ids=lambda path: path.stem)
def test_an_example_has_fewer_than_60_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 60


def test_index_lists_every_example_and_ten_examples_first() -> None:
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert listed[:10] == TEN
    assert sorted([*listed, "character_models"]) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


def test_cluster_job_that_is_started_again_gives_the_same_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["cluster_job", *["--engine", "local", "--updates", "20"]])
    outputs = []
    for ended in (True, True, False):
        if not ended:
            # The directory looks as after a kill.
            (tmp_path / "runs" / "job" / "summary.json").unlink()
        runpy.run_path(str(EXAMPLES / "cluster_job.py"), run_name="__main__")
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
