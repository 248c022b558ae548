"""Mistakes in the words after `python -m benchmarks`: one sentence each, before anything is run."""

import re
import sys

import pytest

from benchmarks.__main__ import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run race --quick --seeds x", "seeds: got 'x', but takes INT ..."),
        ("run race --quik", "--quik: there is no such flag; did you mean --quick?"),
        ("rn", "rn: there is no such command; did you mean run?"),
        ("run", "study: missing; see python -m benchmarks run --help"),
        ("list x", "x: there is no such argument; see python -m benchmarks list --help"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words.split()])
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        main()
    assert str(caught.value) == said  # and nothing more
