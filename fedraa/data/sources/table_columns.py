"""The target, client and feature columns of a table, and their conversion to numbers."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedraa.data.precision import warn_lost_digits
from fedraa.data.sources.written_numbers import begins_with_number, has_decimal_comma, is_date, is_missing, read_numbers
from fedraa.data.tree import Array
from fedraa.errors import InputError, RunWarning
from fedraa.numbers import format_count
from fedraa.reading.table_file import NO_HEADER_HINT, TableFile, is_number, is_unnamed, list_names, open_table

TARGETS = ("label", "target", "y", "class")
FREE_WORDS = 20
"""A column may have this number of different words even if the table has few rows."""
MAX_WORDS = 1000
ROW_NUMBER = re.compile(
    r"#|no\.?|nr\.?|idx|index|rows?|row[\W_]?(?:id|index|no|nr|num|number)|(?:.*[\W_])?id|unnamed: \d+", re.IGNORECASE
)
CAMEL_ID = re.compile(r".*[a-z]I[dD]")


@dataclass(frozen=True)
class Table:
    """A table, from one file or from two with training rows and test rows.

    Attributes:
        path: The file of the training rows.
        test: The file of the test rows; None if `path` contains them.
        frame: The training rows and then the test rows, as a pandas DataFrame.
        cut: The number of training rows.
        target: The name of the column to predict.
        client: The name of the column with the client of each row; None without clients.
        options: The arguments that the user passed to `csv`, so that an error can show a call that works.
        decimal_comma: True if numbers are written with a decimal comma.
    """

    path: str
    test: str | None
    frame: Any
    cut: int
    target: str
    client: str | None
    options: dict[str, Any]
    decimal_comma: bool = False

    def is_words(self, name: str) -> bool:
        """Return True if the column contains text."""
        return bool(self.frame[name].dtype == object)

    def place(self, which: Array) -> str:
        """Return a text that names the first row in the mask `which` [n] by its line, file and client."""
        places = np.flatnonzero(which)
        at = int(places[0])
        if self.test is None:
            at = int(places[np.argmin(self.frame.index[places])])
        place = f"line {self.frame.index[at]}"
        if self.test is not None and at >= self.cut:
            place += f" of {self.test}"
        if self.client is None or self.frame[self.client].isna().iloc[at]:
            return place
        return f"{place}, client {self.frame[self.client].tolist()[at]!r}"

    def cell(self, name: str, which: Array) -> str:
        """Return a text that names a cell in an error: column `name`, and the first row in the mask `which` [n]."""
        return f"column {name!r} {self.place(which)}"

    def spell_call(self, **change: Any) -> str:
        """Return the user's call of `csv` with some options changed, as text."""
        return spell_csv(self.path, self.options | change)

    def without(self, name: str) -> str:
        """Return a hint that shows how to omit the column."""
        dropped = (*self.options.get("drop", ()), name)
        return f"leave the column out: {self.spell_call(drop=dropped)}"


def spell_csv(path: str, options: dict[str, Any]) -> str:
    """Return the text `--dataset "csv('FILE', name=value)"` with every option that is neither None nor empty."""
    values = [f"{name}={value!r}" for name, value in options.items() if value not in (None, ())]
    arguments = ", ".join([repr(path), *values]).replace('"', '\\"')
    return f'--dataset "csv({arguments})"'


def read_frames(path: str, test: str | None, client: str) -> tuple[list[Any], bool]:
    """Return the DataFrames of one or two files, and True if their numbers have a decimal comma.

    A column has the same type in both DataFrames. The column `client` is text if a number
    in it begins with 0, or if two of its texts are the same number.
    """
    files = [open_table(one) for one in (path, test) if one is not None]
    frames = [file.frame() for file in files]
    decimal_comma = any(_has_commas(frame) for frame in frames)
    # With decimal commas, 1.234 means 1234, so columns of floats are read again as text.
    kinds = "Of" if decimal_comma else "O"
    words: set[str] = set()
    for frame in frames:
        words.update(name for name in frame.columns if frame[name].dtype.kind in kinds)
    if any(file.must_stay_text(client) for file in files):
        words.add(client)
    return [_reread_as_words(file, frame, words) for file, frame in zip(files, frames, strict=True)], decimal_comma


def find_target(path: str, names: Sequence[str], target: str | None, options: dict[str, Any]) -> str:
    """Return the name of the column to predict.

    Args:
        path: The file of the table.
        names: The columns.
        target: The column that the user named, or None.
        options: The options of the user's call of `csv`.

    Raises:
        InputError: The column does not exist or is ambiguous. The error shows a call that works.
    """
    example = spell_csv(path, options | {"target": names[-1]})
    if target is not None:
        if target not in names:
            hint = f"as in {example}"
            if any(map(is_number, names)):
                hint = NO_HEADER_HINT
            raise InputError("target", got=target, expected=f"one of the columns {list_names(names)}", hint=hint)
        return target
    by_name = {name.lower(): name for name in reversed(names)}
    known = [by_name[name] for name in TARGETS if name in by_name]
    # A column y may be a coordinate, not a label.
    clear = [name for name in known if name.lower() != "y"]
    if len(clear) > 1:
        raise InputError(
            "target",
            f"both columns {' and '.join(map(repr, clear))} may be the column to predict",
            hint=f"choose one, as in {spell_csv(path, options | {'target': clear[0]})}, and omit the other with drop",
        )
    if known:
        _warn_second_label(path, by_name, known)
        return known[0]
    if any(is_number(name) for name in names):
        raise InputError(
            path,
            f"its first line has numbers ({list_names(names)}) and none of the names {', '.join(TARGETS)}",
            expected="the names of the columns",
            hint=f"put a line with these names first, or name the column to predict, as in {example}",
        )
    raise InputError(
        "target",
        f"no column is called {', '.join(TARGETS[:-1])} or {TARGETS[-1]}",
        expected=f"the column to predict, one of {list_names(names)}",
        hint=f"as in {example}",
    )


def _warn_second_label(path: str, by_name: dict[str, str], known: list[str]) -> None:
    """Warn if column y is a feature although there is no column x.

    Column y may then be a second label. `by_name` has the columns by lower-case name. `known` has the columns with a
    name in `TARGETS`.
    """
    if len(known) > 1 and "x" not in by_name:
        warnings.warn(
            f"dataset {path!r}: column {by_name['y']!r} is a feature, and {known[0]!r} is the one to predict; if both "
            f"are labels, leave one out with drop={(by_name['y'],)!r}",
            RunWarning,
            stacklevel=2,
        )


def drop_row_numbers(path: str, frame: Any, kept: Sequence[str | None]) -> Any:
    """Return the DataFrame without columns of row numbers, with a warning about each.

    Args:
        path: The file of the table.
        frame: The rows of the table.
        kept: The columns that are not features. They are not omitted.
    """
    for name in [name for name in frame.columns if name not in kept]:
        values = frame[name]
        if values.dtype.kind not in "iu" or not values.is_unique:
            if is_unnamed(name):
                problem = f"column {int(name.split()[1]) + 1} has no name in the header"
                raise InputError(path, problem, hint=f"name it, or leave it out with drop=({name!r},)")
            continue
        # In one or two rows, any numbers could be row numbers.
        if len(values) < 3 and not is_unnamed(name):
            continue
        if ROW_NUMBER.fullmatch(name) or CAMEL_ID.fullmatch(name):
            warnings.warn(
                f"dataset {path!r}: column {name!r} holds row numbers and is omitted; rename it to keep it",
                RunWarning,
                stacklevel=2,
            )
            frame = frame.drop(columns=name)
        elif (np.diff(values.to_numpy()) == 1).all():
            warnings.warn(
                f"dataset {path!r}: column {name!r} increases by 1 in each row and is used as a feature; if it holds "
                f"only row numbers, leave it out with drop={(name,)!r}",
                RunWarning,
                stacklevel=2,
            )
    return frame


def refuse_empty(table: Table, name: str) -> None:
    """Raise InputError if a row has no value in the column."""
    empty = table.frame[name].isna().to_numpy()
    if empty.any():
        raise _missing_value_error(table, name, empty, None)


def encode_features(table: Table, names: Sequence[str]) -> Array:
    """Return the columns as features, float32 [n, features], in the order of the file.

    A column of numbers is one feature. A column of words has one feature of 0 and 1 per word of the training rows, in
    alphabetical order. A word that only test rows have gives 0 in all of these features.
    """
    columns = []
    for name in names:
        refuse_empty(table, name)
        if table.is_words(name):
            columns.append(_encode_text(table, name))
        else:
            values = table.frame[name].to_numpy(np.float64)
            _check_float32(table, name, values)
            columns.append(values.astype(np.float32)[:, None])
    return np.concatenate(columns, axis=1)


def encode_numbers(table: Table, name: str) -> Array:
    """Return the target column as float32 [n, 1], or raise InputError if a value is not a finite number."""
    refuse_empty(table, name)
    if not table.is_words(name):
        values = table.frame[name].to_numpy(np.float64)
    else:
        values, _ = _parse_column(table, name)
    _check_float32(table, name, values)
    numbers: Array = values.astype(np.float32)[:, None]
    return numbers


def encode_classes(table: Table, name: str) -> Array:
    """Return the class of each row, int64 [n], numbered from 0 in the order of the values."""
    refuse_empty(table, name)
    values: Array = table.frame[name].to_numpy()
    if table.is_words(name):
        values = values.astype(str)
        numbers = np.array([is_number(word) and not is_missing(word) for word in values.tolist()])
        lacking = np.array([is_missing(word) for word in values.tolist()])
        if numbers.any() and lacking.any() and (numbers | lacking).all():
            raise _missing_value_error(table, name, lacking, str(values[lacking][0]))
        if numbers.all():
            values = values.astype(np.float64)
    labels, classes = np.unique(values, return_inverse=True)
    _refuse_no_classes(table, name, labels)
    missed = ~np.isin(classes[table.cut :], classes[: table.cut])
    if missed.any():
        which = np.concatenate((np.zeros(table.cut, bool), missed))
        value = labels[classes[which][0]].item()
        hint = "add training rows with this value, or remove it from the test rows"
        if table.test is None:
            hint = "all rows with this value were chosen as test rows; add rows with it, or remove them"
        raise InputError(table.cell(name, which), got=value, expected="a value that a training row has", hint=hint)
    return classes.astype(np.int64)


def encode_owners(table: Table, name: str) -> list[Any]:
    """Return the content of the client column in each row: a number or a word."""
    refuse_empty(table, name)
    return list(table.frame[name].tolist())


def _has_commas(frame: Any) -> bool:
    texts = (frame[name].dropna().unique().tolist() for name in frame.columns if frame[name].dtype == object)
    return any(map(has_decimal_comma, texts))


def _reread_as_words(file: TableFile, frame: Any, words: set[str]) -> Any:
    """Return the rows of the file, with text instead of numbers in the columns `words`."""
    if all(frame[name].dtype == object for name in frame.columns if name in words):
        return frame
    return file.frame(words)


def _encode_text(table: Table, name: str) -> Array:
    """Return a text column as numbers [n, 1] if all texts are numbers, else as a 0/1 column per word [n, words]."""
    import pandas as pd

    values, codes = _parse_column(table, name)
    odd = np.isnan(values)
    if not odd.any():
        _check_float32(table, name, values)
        return values.astype(np.float32)[:, None]
    column = table.frame[name]
    words = pd.unique(column).tolist()
    lacking = np.array([is_missing(word) for word in words])[codes]
    if not odd.all() and lacking[odd].all():
        raise _missing_value_error(table, name, odd, column[odd].iloc[0])
    dates = np.array([is_date(word) for word in words])[codes]
    if dates.sum() > len(dates) / 2:
        hint = f"convert dates to a number, such as days since the first date, or {table.without(name)}"
        value = column[dates].iloc[0]
        raise InputError(table.cell(name, dates), got=value, expected="numbers or words, not dates or times", hint=hint)
    if odd.sum() <= len(odd) / 2:
        hint = f"correct it, or {table.without(name)}"
        value = column[odd].iloc[0]
        raise InputError(table.cell(name, odd), got=value, expected="a finite number, as in other rows", hint=hint)
    _refuse_many_words(table, name, len(words))
    numbered = sum(begins_with_number(word) for word in words)
    if numbered > max(10, len(words) / 2):
        warnings.warn(
            f"dataset {table.path!r}: column {name!r} is read as {len(words)} words, such as {words[0]!r}; if they are "
            "numbers, write them as numbers",
            RunWarning,
            stacklevel=2,
        )
    known = sorted({words[code] for code in np.unique(codes[: table.cut])})
    places = np.array([known.index(word) if word in known else -1 for word in words])[codes]
    encoded = np.zeros((len(codes), len(known)), np.float32)
    rows = np.flatnonzero(places >= 0)
    encoded[rows, places[rows]] = 1
    return encoded


def _parse_column(table: Table, name: str) -> tuple[Array, Array]:
    """Return a number and a code for each row of a text column, both [n].

    The number is the value of the text; NaN if the text is not a number. Rows have the same code if their texts are
    equal.
    """
    import pandas as pd

    codes, words = pd.factorize(table.frame[name])
    return read_numbers(words.tolist(), decimal_comma=table.decimal_comma)[codes], codes


def _missing_value_error(table: Table, name: str, which: Array, value: str | None) -> InputError:
    """Return the error about the rows without a value, which are True in the mask `which` [n].

    `value` is the content of the first of them: None, or a word such as `NA`.
    """
    # The target and the client column cannot be omitted.
    hint = "fill in the values, or remove these rows"
    if name not in (table.target, table.client):
        hint = f"fill in the values, remove these rows, or {table.without(name)}"
    expected = f"a value in every row; it has none in {int(which.sum())} of {len(which)}"
    if value is None:
        return InputError(table.cell(name, which), "it is empty", expected=expected, hint=hint)
    return InputError(table.cell(name, which), got=value, expected=expected, hint=hint)


def _check_float32(table: Table, name: str, values: Array) -> None:
    with np.errstate(over="ignore"):
        odd = ~np.isfinite(values.astype(np.float32))
    warn_lost_digits(f"dataset {table.path!r}: column {name!r}", values)
    if odd.any():
        # The error shows the numbers. `tolist` converts them to numbers of Python.
        value = table.frame[name][odd].tolist()[0]
        raise InputError(table.cell(name, odd), got=value, expected="a finite number that float32 can hold")


def _refuse_many_words(table: Table, name: str, words: int) -> None:
    rows = len(table.frame)
    limit = max(FREE_WORDS, min(MAX_WORDS, rows // 5))
    if words > limit:
        raise InputError(
            f"column {name!r}",
            f"it has {words} different words in {rows} rows",
            expected=f"{limit} at most, because each word becomes a feature",
            hint=f"if the words name the rows, {table.without(name)}",
        )


def _refuse_no_classes(table: Table, name: str, labels: Array) -> None:
    """Raise InputError if `labels`, the distinct values of the target column `name`, cannot be classes."""
    field = f"column {name!r}"
    other = f"choose another column, as in {table.spell_call(target='NAME')}"
    rows = len(table.frame)
    count = len(labels)
    if count == 1:
        problem = f"it has only the value {labels[0].item()!r} in {format_count(rows, 'row')}"
        raise InputError(field, problem, expected="two classes or more", hint=other)
    if labels.dtype.kind == "U":
        if count > max(FREE_WORDS, rows // 2):
            problem = f"it has {count} different words in {rows} rows"
            raise InputError(field, problem, expected="classes that each occur in several rows", hint=other)
        return
    limit = FREE_WORDS
    if (labels == np.round(labels)).all():
        limit = max(FREE_WORDS, rows // 10)
    if count > limit:
        raise InputError(
            field,
            f"it has {count} different numbers in {rows} rows",
            expected="classes that each occur in several rows",
            hint="to predict numbers, use --objective regression; if they are classes, write words, such as c17",
        )
