"""The page of papers: each paper with its methods, the verdicts on its claims, and its BibTeX entry."""

import re
from dataclasses import dataclass
from pathlib import Path

from claim_rows import CLAIMS, rows

from fedraa.composition.method import Method
from fedraa.composition.registry import list_methods

BIBTEX = Path(__file__).with_name("papers.bib")
ENTRY = re.compile(r"^@\w+\{(\w+),\n.*?^\}", re.MULTILINE | re.DOTALL)
# The key of each method with another name than its entry. A variant has the paper of its method.
KEYS = {
    "fed-raa": "fedraa",
    "delay-adaptive": "delayadaptive",
    "delta-sgd": "deltasgd",
    "lg-fedavg": "lgfedavg",
    "fedadam": "fedopt",
    "fedyogi": "fedopt",
    "fedadagrad": "fedopt",
    "mofedsam": "fedsam",
    "mimelite": "mime",
    "ra-fed": "ramfed",
    "ram-fed": "ramfed",
    "bernoulli": "shuffled",
    "mr-asyncfl": "mrasyncfl",
    "ringmaster-lmo": "ringmasterlmo",
    "generalized-asyncsgd": "asyncsgd",
}
# The papers whose claims the studies of the repository test, with their names on the page of claims.
REPRODUCED = {
    "fedraa": "Fed-RAA",
    "ramfed": "RAM-Fed",
    "subdismo": "SubDisMO",
    "fedsam": "FedSAM",
    "shuffled": "Shuffled submodels",
}
# The beginnings of the verdicts on claims.
KINDS = ("reproduced", "only in some settings", "the other way round", "within the noise", "cannot tell")
HEAD = """# Papers

You will find the paper and the BibTeX entry of each method, and the claims of papers that fedraa reproduced.

## What was reproduced

Studies in the repository repeat the experiments of five papers, at sizes that fit on two cores. Each claim of a paper
has a verdict, which is computed from the results. The verdict is *reproduced* if all comparisons of the claim hold
beyond the noise over seeds, and *only in some settings* if some of them hold. Otherwise it is *the other way round* or
*within the noise*. It is *cannot tell* if all methods have learned too much or too little to differ. [Claims of the
papers](research/claims.md) has every claim with its numbers and its command.

"""


@dataclass(frozen=True)
class Paper:
    """An entry of papers.bib."""

    key: str
    bibtex: str

    def field(self, name: str) -> str:
        """Return the text of a field."""
        match = re.search(rf"^  {name} = \{{(.*)\}},$", self.bibtex, re.MULTILINE)
        assert match is not None, (self.key, name)
        return match[1]

    @property
    def link(self) -> str:
        """Return the title as a link."""
        return f"[{self.field('title')}]({self.field('url')})"


def papers() -> dict[str, Paper]:
    """Return the entries of papers.bib by key."""
    return {match[1]: Paper(match[1], match[0]) for match in ENTRY.finditer(BIBTEX.read_text())}


def paper_of(method: Method) -> Paper | None:
    """Return the entry of a method's paper, None if papers.bib has none."""
    name = method.variant_of or method.name
    return papers().get(KEYS.get(name, name))


def paper_page() -> str:
    """Return the page: the reproduced papers, all papers with their methods, and the BibTeX entries."""
    named = papers()
    of_paper: dict[str, list[str]] = {key: [] for key in named}
    for name, method in list_methods().items():
        paper = paper_of(method)
        if paper is not None:
            of_paper[paper.key].append(f"[{name}](methods.md#{name})")
    lines = [f"| {paper.link} | {paper.field('year')} | {', '.join(of_paper[key])} |" for key, paper in named.items()]
    table = "\n".join(["| paper | year | methods |", "|---|---|---|", *lines])
    entries = "\n\n".join(paper.bibtex for paper in named.values())
    return f"{HEAD}{_verdicts(named)}\n\n## All papers\n\n{table}\n\n## BibTeX\n\n```bibtex\n{entries}\n```\n"


def _verdicts(named: dict[str, Paper]) -> str:
    """Return the table of the reproduced papers with the number of claims per verdict."""
    claims = rows(CLAIMS.read_text())
    lines = [f"| paper | claims | {' | '.join(KINDS)} |", f"|---|---|{'---|' * len(KINDS)}"]
    for key, name in REPRODUCED.items():
        verdicts = [row.verdict for row in claims if row.first.startswith(f"{name}:")]
        counts = [sum(verdict.startswith(kind) for verdict in verdicts) for kind in KINDS]
        assert sum(counts) == len(verdicts) > 0, name
        lines.append(f"| {named[key].link} | {len(verdicts)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)
