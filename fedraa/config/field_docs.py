"""Document the fields of a pydantic model for `help()` and editors."""

import inspect
import textwrap
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel

# Maximum number of characters in a line of text.
WIDTH = 100


def document_fields(model: type[BaseModel]) -> None:
    """Add the type, default and description of every field to the model's docstring and signature."""
    # `get_type_hints` returns the plain types, without the annotations for pydantic.
    hints = get_type_hints(model)
    parameters = []
    lines = ["", "", "Attributes:"]
    for name, field in model.model_fields.items():
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=field.default, annotation=hints[name]))
        lines.append(f"    {name} ({_type_in_source_code(hints[name])} = {field.default!r}):")
        text = field.description or ""
        lines += textwrap.wrap(text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False)
    model.__doc__ = inspect.cleandoc(model.__doc__ or "") + "\n".join(lines) + "\n"
    # The class does not declare this attribute, so mypy rejects a normal assignment.
    setattr(model, "__signature__", inspect.Signature(parameters))  # noqa: B010


def _type_in_source_code(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(repr, get_args(hint)))
    if get_args(hint) and type(None) in get_args(hint):
        return " | ".join(map(_type_in_source_code, get_args(hint)))
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    return str(hint)
