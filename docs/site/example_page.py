"""The page of examples: their table, and each file in full."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
# A link to a file. On the page of examples it becomes a link to a section.
LINK = re.compile(r"\]\((\w+)\.py\)")


def example_page() -> str:
    """Return the README of the examples, and then each file in full: first the files that the README links to."""
    table = (EXAMPLES / "README.md").read_text()
    linked = LINK.findall(table)
    unlinked = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in linked)
    sections = []
    for name in [*linked, *unlinked]:
        source = (EXAMPLES / f"{name}.py").read_text()
        sections.append(f"## {name}.py\n\n```python\n{source}```")
    return "\n\n".join([LINK.sub(r"](#\1py)", table).strip(), *sections]) + "\n"
