"""Mistakes in the arguments of `python -m benchmarks` are refused before anything runs."""

import sys

import pytest
from refusals import refuses

from benchmarks.__main__ import main


@pytest.mark.parametrize(
    ("words", "field", "advice"),
    [
        ("run race --quick --seeds x", "seeds", "INT ..."),
        ("run race --quik", "--quik", "--quick?"),
        ("rn", "rn", "run?"),
        ("run", "study", "python -m benchmarks run --help"),
        ("list x", "x", "python -m benchmarks list --help"),
        ("million --methods fedvag", "methods", "fedavg"),
        ("million --repeats 0", "repeats", "at least 1"),
        ("large_models --methods fedprox", "methods", "fedavg"),
        ("large_models --repeats 0", "repeats", "at least 1"),
        ("cut_cost --models vgg", "models", "resnet18"),
        ("cut_cost --repeats 0", "repeats", "at least 1"),
        ("cut_models --libraries keras", "libraries", "timm"),
    ],
)
def test_wrong_argument_is_refused(words: str, field: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words.split()])
    with refuses(field, advice):
        main()
