"""Import a user's objects by path, `package.module:Name`, and limit the paths that may be imported."""

import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any

from fedraa.components.user_code import find_user_code
from fedraa.errors import InputError, one_line

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_<][\w.<>]*")
# The import paths that may be imported; None allows all of them.
_importable: ContextVar[Collection[str] | None] = ContextVar("_importable", default=None)


def is_path(text: str) -> bool:
    """Return True for an import path, `package.module:Name`."""
    return _PATH.fullmatch(text) is not None


@contextmanager
def importing_only(paths: Collection[str]) -> Iterator[None]:
    """Allow only the import of these paths in the `with` block; other imports raise InputError.

    Without this limit, a run directory from another person could run any code.
    """
    token = _importable.set(paths)
    try:
        yield
    finally:
        _importable.reset(token)


def import_object(where: str, path: str) -> Any:
    """Return the object at the import path `package.module:Name`.

    Args:
        where: The name of the field in error messages.
        path: The import path.

    Raises:
        InputError: The object cannot be imported, or its path is not allowed.
    """
    allowed = _importable.get()
    if allowed is not None and path not in allowed:
        problem = "it is code that would be imported and run"
        raise InputError(where, problem, got=path, hint="give --trust if you trust it")
    module, _, name = path.partition(":")
    try:
        component: Any = import_user_module(where, module, path)
        for attribute in name.split("."):
            component = getattr(component, attribute)
    except AttributeError as error:
        if module == "__main__" or "<" in name:
            problem = "it was created in a script or a notebook"
            raise InputError(where, problem, got=path, hint="pass the object again") from None
        raise InputError(where, f"it cannot be imported: {error}", got=path, hint=f"correct the name {name}") from None
    return component


def import_user_module(where: str, module: str, path: str = "") -> ModuleType:
    """Return a user's module.

    Args:
        where: The name of the field in error messages.
        module: The name of the module.
        path: The import path in error messages, such as `package.module:NAME`. If it is empty, error messages have
            `module` instead.

    Raises:
        InputError: The module cannot be imported.
    """
    try:
        return sys.modules[module] if module == "__main__" else import_module(module)
    except ImportError as error:
        hint = "run in the folder of the module, or install it"
        raise InputError(where, f"it cannot be imported: {error}", got=path or module, hint=hint) from None
    # The user's module can raise any exception.
    except (Exception, SystemExit) as error:
        problem = f"it cannot be imported: {type(error).__name__}: {one_line(error)}"
        hint = f"correct {find_user_code(error) or module}"
        raise InputError(where, problem, got=path or module, hint=hint) from error
