"""The project's language stays within its limits, and the metrics count what they name."""

from pathlib import Path

import pytest

from benchmarks.system.prose import PHRASES, ROOT, find_worst, measure, read_texts

MODULE = '''"""What is measured."""

# nobody goes on alone


def read(given):
    """Return what it holds; nothing else."""
    found = [x for row in given for x in row]
    return found if (first := found[0]) else "a message, for the user who came to it"


def read_rows(rows):
    """Return the rows."""
    return rows
'''


def test_prose_of_the_project_is_within_every_limit() -> None:
    rates = measure(ROOT, list(read_texts(ROOT)))
    assert {name: rate for name, rate in rates.items() if rate.value > rate.limit} == {}


def _write_project(root: Path) -> None:
    (root / "fedraa").mkdir()
    (root / "fedraa/module.py").write_text(MODULE)
    (root / "README.md").write_text(
        "It is told anew where it is, too.\n\n```\nnobody nobody nobody nobody nobody\n```\n"
    )


def test_texts_of_every_kind_are_read(tmp_path: Path) -> None:
    _write_project(tmp_path)
    assert [(text.kind, text.place) for text in read_texts(tmp_path)] == [
        ("docstring", "fedraa/module.py:1"),
        ("docstring", "fedraa/module.py:7"),
        ("docstring", "fedraa/module.py:13"),
        ("string", "fedraa/module.py:9"),
        ("comment", "fedraa/module.py:3"),
        ("page", "README.md"),
    ]


def test_rates_are_counts_per_word_and_per_line(tmp_path: Path) -> None:
    _write_project(tmp_path)
    rates = measure(tmp_path, list(read_texts(tmp_path)))
    # 3 + 6 + 3 words of docstrings, 4 of the comment, 9 of the string and 8 of the page.
    per_word = 1000 / 33
    assert {name: rates[name].value / per_word for name in PHRASES} == pytest.approx(
        {
            "headless 'what is'": 2,
            "who as a noun": 1,
            "tell, say, hear": 1,
            "'alone' for 'only'": 1,
            "go on with": 1,
            "an own": 0,
            "', for' as because": 1,
            "come to": 1,
            "anew": 1,
            "', too'": 1,
            "become of": 0,
            "so many, as many": 0,
            "'where' for 'if'": 1,
            "nobody, somebody": 1,
        }
    )
    assert rates["one-word function names, %"].value == 50
    assert rates["docstrings that begin with a function word, %"].value == pytest.approx(100 / 3)
    assert rates["semicolons per 1,000 words of docstrings and comments"].value == pytest.approx(1000 / 16)
    per_line = 1000 / 14
    assert rates["variables named by a function word, per 1,000 lines"].value == pytest.approx(per_line)
    for name in ("conditional expressions", "comprehensions with two for,", "assignment expressions"):
        assert rates[f"{name} per 1,000 lines"].value == pytest.approx(per_line)


def test_worst_texts_have_the_most_phrases_per_word(tmp_path: Path) -> None:
    _write_project(tmp_path)
    worst = find_worst(list(read_texts(tmp_path)))
    assert worst[0].words == "nobody goes on alone"
    assert [text for text in worst if text.words == "Return the rows."] == []
