"""Measure phrases that are hard to read, one-word function names, and dense code.

Each limit is about twice the worst rate in torchtitan, fedjax, pfl-research, acme, torchft and Flower. The measured
texts are docstrings, comments, strings that a user can see, and Markdown pages.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.system.option_checks import refuse_below
from fedraa.cli.console import print_line

ROOT = Path(__file__).parents[2]
FOLDERS = ("fedraa", "actors", "schedulers", "benchmarks", "examples")
# Strings with fewer words are mostly keys or names.
MIN_WORDS = 5
# The number of characters of each text that `--worst` prints.
SHOWN = 240


class Phrase(NamedTuple):
    """A regular expression, and the maximum number of matches in 1,000 words."""

    pattern: str
    limit: float


PHRASES = {
    "headless 'what is'": Phrase(r"\b[Ww]hat (is|are|was|were|has|have|had|comes?|came|goes|it|they|takes?)\b", 0.3),
    "who as a noun": Phrase(r"(?<![\w-])(who(ever)?|whom|whose)\b(?!\?)", 0.3),
    "tell, say, hear": Phrase(r"\b(told|tells?|says?|said|hears?|heard)\b", 0.5),
    "'alone' for 'only'": Phrase(r"\balone\b", 0.05),
    "go on with": Phrase(r"\b(go(es|ne|ing)?|went) on\b", 0.1),
    "an own": Phrase(r"\b(an?|the|any) own\b|\bof (its|their|our|your|the user's|somebody's) own\b|\bown ones?\b", 0.1),
    "', for' as because": Phrase(r", for (it|they|the|a|an|that|there|this|these|those|we|not|no)\b", 0.15),
    "come to": Phrase(r"\b(comes?|came|coming) to\b", 0.1),
    "anew": Phrase(r"\banew\b", 0.05),
    "', too'": Phrase(r", too\b", 0.1),
    "become of": Phrase(r"\bbec(o|a)mes? of\b", 0.05),
    "so many, as many": Phrase(r"\b(so|as) (many|much)\b", 0.2),
    "'where' for 'if'": Phrase(
        r"\b[Ww]here (it|there|they|nothing|nobody|all|some|none|one) (is|are|has|have|was|were|does|do|can)\b", 0.2
    ),
    "nobody, somebody": Phrase(r"\b(nobody|somebody|nowhere|someone else)\b", 0.2),
}
# A docstring must begin with a verb or a noun.
FIRST_WORD = re.compile(r"(What|Whether|Who|Whose|Of|As|That|Those|Where|How|Which|By|In|From|Not|Nothing)(?!\w)")
# These names describe no value.
FUNCTION_WORD = re.compile(
    "given|found|each|made|said|told|there|few|some|most|least|once|such|others|rest|ours|theirs"
)
CODE_LIMITS = {
    "one-word function names, %": 35.0,
    "variables named by a function word, per 1,000 lines": 1.0,
    "docstrings that begin with a function word, %": 1.0,
    "conditional expressions per 1,000 lines": 8.0,
    "comprehensions with two for, per 1,000 lines": 0.4,
    "assignment expressions per 1,000 lines": 1.0,
    "semicolons per 1,000 words of docstrings and comments": 5.5,
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (*FUNCTIONS, ast.ClassDef, ast.Module)


@dataclass(frozen=True)
class Text:
    """A docstring, comment, string or paragraph of the project.

    Attributes:
        kind: docstring, comment, string or page.
        place: The file and, for a Python file, the line.
        words: The text with single spaces.
    """

    kind: str
    place: str
    words: str


@dataclass(frozen=True)
class Rate:
    """The value of a metric and its limit."""

    value: float
    limit: float


def main(worst: int = 0) -> None:
    """Print every metric beside its limit.

    Args:
        worst: The number of texts to print. The texts with the most matched phrases per word come first.
    """
    refuse_below(0, worst=worst)
    texts = list(read_texts(ROOT))
    for name, rate in measure(ROOT, texts).items():
        mark = "  exceeded" if rate.value > rate.limit else ""
        print_line(f"{name:55} {rate.value:8.2f} {rate.limit:8.2f}{mark}")
    for text in find_worst(texts)[:worst]:
        print_line(f"{text.place} [{text.kind}] {text.words[:SHOWN]}")


def measure(root: Path, texts: list[Text]) -> dict[str, Rate]:
    """Return the rates of phrases, one-word names and dense code in the project folder `root`."""
    words = sum(len(text.words.split()) for text in texts)
    rates = {
        name: Rate(1000 * sum(len(re.findall(phrase.pattern, text.words)) for text in texts) / words, phrase.limit)
        for name, phrase in PHRASES.items()
    }
    code = _measure_code(root)
    prose = [text.words for text in texts if text.kind in ("docstring", "comment")]
    code["semicolons per 1,000 words of docstrings and comments"] = (
        1000 * sum(text.count(";") for text in prose) / sum(len(text.split()) for text in prose)
    )
    rates.update({name: Rate(code[name], limit) for name, limit in CODE_LIMITS.items()})
    return rates


def find_worst(texts: list[Text]) -> list[Text]:
    """Return the texts that contain any of PHRASES. The text with the most of these phrases per word is first."""

    def density(text: Text) -> float:
        hits = sum(len(re.findall(phrase.pattern, text.words)) for phrase in PHRASES.values())
        return hits / (MIN_WORDS + len(text.words.split()))

    ordered = sorted(texts, key=density, reverse=True)
    return [text for text in ordered if density(text) > 0]


def read_texts(root: Path) -> Iterator[Text]:
    """Yield all docstrings, comments, longer strings and paragraphs of pages."""
    for file in _python_files(root):
        yield from _read_module(file.read_text(), file.relative_to(root).as_posix())
    for page in (*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n", text):
            if len(paragraph.split()) >= MIN_WORDS:
                yield Text("page", page.relative_to(root).as_posix(), " ".join(paragraph.split()))


def _python_files(root: Path) -> list[Path]:
    return sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py"))


def _read_module(source: str, name: str) -> Iterator[Text]:
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = set()
    for node in nodes:
        docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if docstring:
            assert isinstance(node, DOCUMENTED)
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            docstrings.add(first.value)
            yield Text("docstring", f"{name}:{first.lineno}", " ".join(docstring.split()))
    for node in nodes:
        text = _string_value(node)
        if text is not None and node not in docstrings and len(text.split()) >= MIN_WORDS:
            assert isinstance(node, ast.expr)
            yield Text("string", f"{name}:{node.lineno}", " ".join(text.split()))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ").strip()
        is_directive = text.startswith(("type:", "noqa", "pragma"))
        if token.type == tokenize.COMMENT and len(text.split()) >= 3 and not is_directive:
            yield Text("comment", f"{name}:{token.start[0]}", text)


def _string_value(node: ast.AST) -> str | None:
    """Return the text of a string, with X for each value of an f-string; None for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _measure_code(root: Path) -> dict[str, float]:
    """Return the metrics that are counted in the syntax trees of the code, by their names in CODE_LIMITS."""
    counts: Counter[str] = Counter()
    for file in _python_files(root):
        source = file.read_text()
        counts["lines"] += source.count("\n")
        for node in ast.walk(ast.parse(source)):
            counts.update(_classify(node))
    return {
        "one-word function names, %": 100 * counts["one-word function"] / counts["function"],
        "variables named by a function word, per 1,000 lines": 1000 * counts["function word"] / counts["lines"],
        "docstrings that begin with a function word, %": 100 * counts["odd docstring"] / counts["docstring"],
        "conditional expressions per 1,000 lines": 1000 * counts["conditional"] / counts["lines"],
        "comprehensions with two for, per 1,000 lines": 1000 * counts["nested"] / counts["lines"],
        "assignment expressions per 1,000 lines": 1000 * counts["walrus"] / counts["lines"],
    }


def _classify(node: ast.AST) -> Mapping[str, int]:
    """Return 1 for each property that a syntax-tree node has, such as `one-word function`, and 0 for the others."""
    docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
    is_assigned = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    is_function = isinstance(node, FUNCTIONS) and not node.name.startswith("__")
    return {
        "function": is_function,
        "one-word function": is_function and "_" not in getattr(node, "name", "").strip("_"),
        "function word": is_assigned and FUNCTION_WORD.fullmatch(getattr(node, "id", "")) is not None,
        "docstring": bool(docstring),
        "odd docstring": FIRST_WORD.match(docstring or "") is not None,
        "conditional": isinstance(node, ast.IfExp),
        "nested": isinstance(node, COMPREHENSIONS) and len(node.generators) > 1,
        "walrus": isinstance(node, ast.NamedExpr),
    }
