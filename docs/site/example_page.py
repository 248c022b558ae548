"""The page of examples: their table, and each file in full."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
# A link to a file. On the page of examples it becomes a link to a section.
LINK = re.compile(r"\]\((\w+)\.py\)")


def example_page() -> str:
    """Return README.md of the examples and all files in its order. Files that it does not link to come last."""
    table = (EXAMPLES / "README.md").read_text()
    linked = LINK.findall(table)
    rest = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in linked)
    sections = [f"## {name}.py\n\n```python\n{(EXAMPLES / f'{name}.py').read_text()}```" for name in [*linked, *rest]]
    return "\n\n".join([LINK.sub(r"](#\1py)", table).strip(), *sections]) + "\n"
