"""Convert the exceptions of components that may be custom or built-in."""

from contextlib import AbstractContextManager, nullcontext

from fedraa.components.calls import convert_errors
from fedraa.components.text import is_built_in


def convert_custom_errors(where: str, part: object) -> AbstractContextManager[None]:
    """Return `convert_errors` for a custom component, and an empty context for a built-in one.

    The errors of a built-in component come from the data or from other components.
    """
    return nullcontext() if is_built_in(part) else convert_errors(where, part)
