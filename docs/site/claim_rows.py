"""Where the page of claims speaks of a method: by the method's name in a row, whatever the tables there look like."""

import re
from dataclasses import dataclass
from pathlib import Path

CLAIMS = Path(__file__).parents[1] / "claims.md"
VERDICT = re.compile(r"verdict|reproduced", re.IGNORECASE)  # the heading of the column that has one
MARKUP = re.compile(r"\[([^]]*)\]\([^)]*\)|[`*]")


@dataclass(frozen=True)
class Row:
    """A row of a table: the section that it is in, what its first column says, and the verdict, "" if there is none."""

    section: str
    first: str
    verdict: str
    text: str

    @property
    def link(self) -> str:
        anchor = re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", self.section).strip().lower())
        return f"claims.md#{anchor}"


def rows(text: str) -> list[Row]:
    """All rows of all tables, without their heads."""
    found, section, head = list[Row](), "", list[str]()
    for line in text.splitlines():
        if line.startswith("#"):
            section = _plain(line.lstrip("#"))
        if not line.startswith("|"):
            head = []
        elif not head:
            head = _cells(line)
        elif not set(line) <= set("|-: "):
            cells = _cells(line)
            verdicts = [cell for name, cell in zip(head, cells, strict=False) if VERDICT.search(name)]
            found.append(Row(section, cells[0], "".join(verdicts[:1]), line))
    return found


def claims_of(method: str, text: str) -> list[str]:
    """For a card: each claim of the method, or else that names it, with its verdict; or the sections with such rows."""
    name = re.compile(rf"(?<![\w-]){re.escape(method)}(?![\w-])", re.IGNORECASE)
    told = [row for row in rows(text) if name.search(row.text)]
    told = [row for row in told if row.first.lower().startswith(method)] or told
    claims = [f"[{row.first}]({row.link}): {row.verdict.partition('. ')[0]}" for row in told if row.verdict]
    sections = [f"[{row.section}]({row.link})" for row in told if not row.verdict]
    return list(dict.fromkeys([*claims, *sections]))


def _cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [_plain(cell) for cell in cells]


def _plain(text: str) -> str:
    return MARKUP.sub(r"\1", text).strip()
