"""The page of papers: each paper with its methods, the verdicts on its claims, and its BibTeX entry."""

from claim_rows import read_rows

from benchmarks.studies.bibliography import Paper, read_papers
from benchmarks.studies.paper_pages import load_papers
from fedraa.composition.method import Method
from fedraa.composition.registry import list_methods

# The key in papers.bib of each method whose key is not its name. A variant has the paper of the method that it varies.
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
# The beginnings of the verdicts on claims.
KINDS = ("reproduced", "only in some settings", "the other way round", "within the noise", "cannot tell")
HEAD = """# Papers

You will find the paper and the BibTeX entry of each method, and the claims of papers that fedraa reproduced.

## What was reproduced

Studies in the repository repeat the experiments of five papers, at sizes that fit on two cores. Each claim has a
verdict that is computed from the results. It is *reproduced* if all comparisons of the claim hold beyond the noise over
seeds, and *only in some settings* if some do. Otherwise the result is the other way round or within the noise. The
verdict is *cannot tell* if there are too few seeds, or if all methods have learned too much or too little to differ.
Each paper has a page with its claims, their numbers and their commands: [Fed-RAA](papers/fed-raa.md),
[RAM-Fed](papers/ram-fed.md), [SubDisMO](papers/subdismo.md), [shuffled submodels](papers/shuffled-submodels.md) and
[FedSAM](papers/fedsam.md).

"""


def paper_of(method: Method) -> Paper | None:
    """Return the entry of a method's paper, None if papers.bib has none."""
    name = method.variant_of or method.name
    return read_papers().get(KEYS.get(name, name))


def paper_page() -> str:
    """Return the page: the reproduced papers, all papers with their methods, and the BibTeX entries."""
    named = read_papers()
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
    claims = read_rows()
    lines = [f"| paper | claims | {' | '.join(KINDS)} |", f"|---|---|{'---|' * len(KINDS)}"]
    for page in load_papers():
        verdicts = [row.verdict for row in claims if row.page == f"papers/{page.file_name}.md" and row.verdict]
        counts = [sum(verdict.startswith(kind) for verdict in verdicts) for kind in KINDS]
        assert sum(counts) == len(verdicts) > 0, page.name
        link = f"[{len(verdicts)}](papers/{page.file_name}.md)"
        lines.append(f"| {named[page.key].link} | {link} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)
