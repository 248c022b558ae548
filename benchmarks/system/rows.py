"""Tables of results to which a study adds one row after another, so that an interrupted study continues."""

import csv
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

RowT = TypeVar("RowT")


def add_row(out: Path, row: Any) -> None:
    """Append a row, a dataclass, to a CSV file."""
    is_new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(row)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


def read_rows(out: Path, kind: type[RowT]) -> list[RowT]:
    """Return the rows of the file as objects of a dataclass; none if the file does not exist."""
    if not out.exists():
        return []
    adapter = TypeAdapter(kind)
    with out.open(newline="") as file:
        return [adapter.validate_python(texts) for texts in csv.DictReader(file)]
