"""Tables of results in CSV files."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from benchmarks.system.option_checks import refuse_missing_folder
from fedraa.cli.console import print_line
from fedraa.errors import InputError
from fedraa.numbers import expected_text

RowT = TypeVar("RowT")


def add_row(out: Path, row: Any) -> None:
    """Append a dataclass object to a CSV file with a column per field."""
    is_new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(row)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


def add_missing_rows(
    out: Path, columns: Sequence[str], cases: Iterable[tuple[Any, ...]], make_row: Callable[..., Any]
) -> None:
    """Append a row for each case that a CSV file does not contain yet, and print it.

    Args:
        out: The CSV file.
        columns: The columns that identify a row.
        cases: The values of these columns, in the same order.
        make_row: Returns the row of a case, a dataclass object. Its arguments are the values of the case.
    """
    present = {tuple(row[column] for column in columns) for row in open_table(out, columns)}
    for case in cases:
        if tuple(map(str, case)) not in present:
            row = make_row(*case)
            add_row(out, row)
            print_line(str(row))


def read_rows(out: Path, kind: type[RowT]) -> list[RowT]:
    """Read the rows of a CSV file as objects of the dataclass `kind`; empty if there is no file.

    Raises InputError with the file and the line if a row does not fit.
    """
    adapter = TypeAdapter(kind)
    rows = []
    for number, texts in enumerate(read_table(out), 2):
        try:
            rows.append(adapter.validate_python(texts))
        except ValidationError as error:
            details = error.errors(include_url=False)[0]
            field = f"{out} line {number}: {'.'.join(map(str, details['loc']))}"
            raise InputError(field, got=details["input"], expected=expected_text(details)) from None
    return rows


def open_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of the table that a measurement continues or replaces; empty if there is no file.

    Raises InputError if the file lacks one of the columns, or if its folder does not exist.
    """
    refuse_missing_folder(path)
    rows = read_table(path)
    if rows and not rows[0].keys() >= set(columns):
        expected = f"a table with the columns {', '.join(columns)}, or a new file"
        raise InputError("out", "the file has other content", got=path, expected=expected)
    return rows


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file as texts by column; empty if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write a CSV file with these columns and rows. If the process is killed, the old file stays."""
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows)
    partial.replace(path)


def print_rows(rows: Sequence[Mapping[str, str]], width: int | None = None) -> None:
    """Print rows with the same columns as a table, `width` characters wide if it is given."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    Console(width=width).print(table)
