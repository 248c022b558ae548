"""Tables of results in CSV files, written row by row."""

import csv
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

RowT = TypeVar("RowT")


def add_row(out: Path, row: Any) -> None:
    """Append a dataclass object to a CSV file with a column per field."""
    is_new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(row)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


def read_rows(out: Path, kind: type[RowT]) -> list[RowT]:
    """Read the rows of a CSV file as objects of the dataclass `kind`; empty if there is no file."""
    if not out.exists():
        return []
    adapter = TypeAdapter(kind)
    with out.open(newline="") as file:
        return [adapter.validate_python(texts) for texts in csv.DictReader(file)]
