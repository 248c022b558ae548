"""Every error about a user's mistake has the expected value or the next step."""

import ast
from collections.abc import Iterator
from pathlib import Path

import fedraa

PACKAGE = Path(fedraa.__file__).parent
SOURCES = ("cli", "composition", "components", "config", "callbacks", "api.py")
# These errors pass on the sentence of another error, which has all its parts.
PASSED_ON = {"InputError(field, problem)", "InputError(match['field'], match['problem'])"}


def raised_errors() -> Iterator[tuple[str, ast.Call]]:
    for source in SOURCES:
        path = PACKAGE / source
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "InputError":
                    yield f"{file.name}:{node.lineno}", node


def test_every_error_has_an_expected_value_or_a_next_step() -> None:
    errors = list(raised_errors())
    assert len(errors) > 60
    lacking = []
    for place, call in errors:
        parts = {keyword.arg for keyword in call.keywords}
        has_defect = len(call.args) == 2 or "got" in parts
        has_way_out = bool({"expected", "hint"} & parts)
        if not (has_defect and has_way_out) and ast.unparse(call) not in PASSED_ON:
            lacking.append(place)
    assert lacking == []
