"""The examples run to their end, here at a tiny size, and say how well the model does."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {"hugging_face": "datasets"}  # packages of extras


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("regression", "--time 2 --clients 4", "fedavg: mse "),
        ("segmentation", "--time 0.1 --images 40", "fedavg: mean IoU "),
        ("next_character", "--time 0.1 --roles 3", "LSTM, fedavg: perplexity "),
        ("lora", "--roles 2 --steps 5 --rounds 1 --width 8 --rank 2", "LoRA    flora "),
        ("augmentation", "--time 0.1 --count 80", "normalize, crop(padding=2), flip: accuracy "),
        ("hugging_face", "--time 0.5 --reviews 80 --authors 3", "fedavg: accuracy "),
        ("larger_than_memory", "--megabytes 4 --updates 20 --engine local", "4 MB of 200 clients: accuracy "),
    ],
)
def test_an_example_runs(
    name: str,
    flags: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # as of a script
    monkeypatch.setattr(sys, "argv", [name, *flags.split()])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    "example", [path for path in sorted(EXAMPLES.glob("*.py")) if path.stem != "lora"], ids=lambda path: path.stem
)
def test_an_example_is_read_at_a_glance(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 60
