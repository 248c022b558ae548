"""Import paths, `package.module:Name`, and which of them may be followed."""

import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any

from fedraa.components.calls import one_line

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.<>]*")
_importable: ContextVar[Collection[str] | None] = ContextVar("_importable", default=None)  # None: any path


def is_path(text: str) -> bool:
    """Whether this is an import path, `package.module:Name`."""
    return _PATH.fullmatch(text) is not None


@contextmanager
def importing_only(paths: Collection[str]) -> Iterator[None]:
    """Within, no other import path is followed, wherever it comes from: nobody's code is run that was not asked for."""
    token = _importable.set(paths)
    try:
        yield
    finally:
        _importable.reset(token)


def imported(where: str, path: str) -> Any:
    """What `package.module:Name` stands for; ValueError, a sentence that names the field `where`, if there is none."""
    allowed = _importable.get()
    if allowed is not None and path not in allowed:
        raise ValueError(f"{where}: {path} is code that would be imported and run; if you trust it, give --trust")
    module, _, name = path.partition(":")
    try:
        found: Any = imported_module(where, module, path)
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        if module == "__main__" or "<" in name:
            raise ValueError(f"{where}: {path} was made in a script or a notebook; give it again") from None
        raise ValueError(f"{where}: {path} cannot be imported: {error}") from None
    return found


def imported_module(where: str, module: str, path: str = "") -> ModuleType:
    """A module of the user's own; ValueError, a sentence that names the field `where`, if there is none.

    `path` is what is wanted of it, for that sentence.
    """
    try:
        return sys.modules[module] if module == "__main__" else import_module(module)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{where}: {path or module} cannot be imported: {error}") from None
    except (Exception, SystemExit) as error:  # whatever a module of the user's own does as it is read
        said = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"{where}: {path or module} cannot be imported: {said}") from error
