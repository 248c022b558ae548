"""The papers that the documentation cites, read from docs/site/papers.bib."""

import re
from dataclasses import dataclass
from pathlib import Path

BIBTEX = Path(__file__).parents[2] / "docs" / "site" / "papers.bib"
ENTRY = re.compile(r"^@\w+\{(\w+),\n.*?^\}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Paper:
    """An entry of papers.bib."""

    key: str
    bibtex: str

    def field(self, name: str) -> str:
        """Return the text of a BibTeX field."""
        match = re.search(rf"^  {name} = \{{(.*)\}},$", self.bibtex, re.MULTILINE)
        assert match is not None, (self.key, name)
        return match[1]

    @property
    def link(self) -> str:
        """Return the paper's title as a Markdown link to the paper."""
        return f"[{self.field('title')}]({self.field('url')})"


def read_papers() -> dict[str, Paper]:
    """Return the entries of papers.bib by key."""
    return {match[1]: Paper(match[1], match[0]) for match in ENTRY.finditer(BIBTEX.read_text())}
