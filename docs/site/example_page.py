"""The page of examples: their table, and below it each as it stands in its file."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
LINK = re.compile(r"\]\((\w+)\.py\)")  # to a file, which is a section here


def example_page() -> str:
    """README.md of the examples, and all of them in its order; those that it does not link to come last."""
    table = (EXAMPLES / "README.md").read_text()
    linked = LINK.findall(table)
    rest = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in linked)
    sections = [f"## {name}.py\n\n```python\n{(EXAMPLES / f'{name}.py').read_text()}```" for name in [*linked, *rest]]
    return "\n\n".join([LINK.sub(r"](#\1py)", table).strip(), *sections]) + "\n"
