"""Find the rows of the pages of papers that name a method."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAPERS = Path(__file__).parents[1] / "papers"
# The heading of the column that has the verdict.
VERDICT = re.compile(r"verdict|reproduced", re.IGNORECASE)
MARKUP = re.compile(r"\[([^]]*)\]\([^)]*\)|[`*]")


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        page: The address of the page.
        section: The heading above the table.
        first: The text of the first column.
        verdict: The verdict, "" if the table has none.
        text: The whole line.
    """

    page: str
    section: str
    first: str
    verdict: str
    text: str

    @property
    def link(self) -> str:
        """Return the address of the section."""
        anchor = re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", self.section).strip().lower())
        return f"{self.page}#{anchor}"


def read_rows() -> list[Row]:
    """Return the rows of all tables of the pages of papers."""
    return [row for path in sorted(PAPERS.glob("*.md")) for row in rows(path.read_text(), f"papers/{path.name}")]


def rows(text: str, page: str) -> list[Row]:
    """Return the rows of all tables of a page, without the rows of headings.

    Args:
        text: The text of the page.
        page: The address of the page.
    """
    result: list[Row] = []
    section = ""
    head: list[str] = []
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
            result.append(Row(page, section, cells[0], "".join(verdicts[:1]), line))
    return result


def claims_of(method: str, of_pages: Sequence[Row]) -> list[str]:
    """Return a link for each claim that begins with the method's name, or else for each row that contains the name.

    A row without a verdict gives a link to its section.

    Args:
        method: The name of the method.
        of_pages: The rows of all pages.
    """
    name = re.compile(rf"(?<![\w-]){re.escape(method)}(?![\w-])", re.IGNORECASE)
    naming = [row for row in of_pages if name.search(row.text)]
    beginning = [row for row in naming if row.first.lower().startswith(method)]
    selected = beginning or naming
    claims = [f"[{row.first}]({row.link}): {row.verdict.partition('. ')[0]}" for row in selected if row.verdict]
    sections = [f"[{row.section}]({row.link})" for row in selected if not row.verdict]
    return list(dict.fromkeys([*claims, *sections]))


def _cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [_plain(cell) for cell in cells]


def _plain(text: str) -> str:
    return MARKUP.sub(r"\1", text).strip()
