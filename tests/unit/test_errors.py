import pickle

import numpy as np
import pytest
from refusals import refuses

from fedraa.errors import (
    InputError,
    RunFailed,
    StructuredError,
    closest_name,
    first_line,
    locate_in_dataset,
    suggest_closest,
)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("lr", got=-1.0, expected="a number over 0"), "lr: got -1.0; expected a number over 0"),
        (InputError("lr", got="x", expected="a number", hint="give 0.1"), "lr: got 'x'; expected a number; give 0.1"),
        (InputError("model", "it has no parameters"), "model: it has no parameters"),
        (InputError("lr", "it has no effect", got=1, hint="leave it out"), "lr: got 1; it has no effect; leave it out"),
        (InputError("x", got=None, expected="an array"), "x: got None; expected an array"),
        (RunFailed("client 3", "its worker died 4 times"), "client 3: its worker died 4 times"),
    ],
)
def test_error_message_consists_of_field_problem_value_expected_and_hint(error: StructuredError, sentence: str) -> None:
    assert str(error) == sentence


def test_error_message_shows_the_shape_of_an_array_instead_of_its_values() -> None:
    assert str(InputError("y", got=np.zeros((3, 2)), expected="labels")) == (
        "y: got an array of float64 [3, 2]; expected labels"
    )


def test_pickled_error_keeps_type_sentence_and_parts() -> None:
    error = InputError("partition", "it has no rows", got=lambda: 0, expected="indices", hint="give some")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is InputError
    assert str(copy) == str(error)
    assert (copy.field, copy.problem, copy.got, copy.expected, copy.hint) == (
        ("partition", "it has no rows", "a lambda", "indices", "give some")
    )


def test_error_with_another_field_keeps_the_other_parts() -> None:
    error = InputError("value", got=3, expected="at most 2").with_field("async_rule.buffer")
    assert type(error) is InputError
    assert (error.field, error.got, str(error)) == (
        "async_rule.buffer",
        3,
        "async_rule.buffer: got 3; expected at most 2",
    )


def test_refuses_rejects_another_field_value_type_or_name() -> None:
    for field, got, name in (("momentum", 2, "0"), ("lr", 3, "0"), ("lr", 2, "momentum")):
        with pytest.raises(AssertionError), refuses(field, name, got=got):
            raise InputError("lr", got=2, expected="0 to 1")
    with pytest.raises(AssertionError), refuses("run", error=StructuredError):
        raise RunFailed("run", "it stopped")


@pytest.mark.parametrize(
    ("word", "close"),
    [
        ("gre-ra", "gre-raa"),
        ("Gre_RAA", "gre-raa"),
        ("rnadom", "random"),
        ("nur", "run"),
        ("grant", None),
        ("least", None),
        ("r", None),
    ],
)
def test_closest_name_has_nearly_the_same_letters(word: str, close: str | None) -> None:
    assert closest_name(word, ["gre-raa", "random", "least-sent", "run"]) == close
    assert bool(suggest_closest(word, ["gre-raa", "random", "least-sent", "run"])) == (close is not None)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no column\nat row 3"), "no column"),
        (ValueError("\n  no column"), "no column"),
        # `str(error).splitlines()[0]` would raise an IndexError.
        (KeyError(), "KeyError"),
    ],
)
def test_first_line_returns_the_first_line_of_the_message_or_the_class(error: Exception, line: str) -> None:
    assert first_line(error) == line


@pytest.mark.parametrize(
    ("name", "field", "located"),
    [
        ("t.csv", "t.csv line 3", "dataset: t.csv line 3"),
        ("csv('t.csv', drop=('a',))", "t.csv", "dataset: t.csv"),
        ("folder:cats", "cats/train/x.png", "dataset: cats/train/x.png"),
        ("folder:cats/", "cats/train", "dataset: cats/train"),
        ("folder:./cats/", "cats/train", "dataset: cats/train"),
        # A path may contain a quotation mark.
        ("folder:d i'r/my c'ats", "d i'r/my c'ats/train", "dataset: d i'r/my c'ats/train"),
        ("csv(\"d i'r/t.csv\", target='a')", "d i'r/t.csv", "dataset: d i'r/t.csv"),
        ("t.csv", "target", "dataset 't.csv': target"),
        ("x", "x_train row 3", "dataset 'x': x_train row 3"),
        ("csv('a.csv', test='b.csv')", "b.csv", "dataset \"csv('a.csv', test='b.csv')\": b.csv"),
    ],
)
def test_an_error_in_a_file_of_a_data_set_names_the_file_once(name: str, field: str, located: str) -> None:
    assert locate_in_dataset(InputError(field, "it is empty"), name).field == located
