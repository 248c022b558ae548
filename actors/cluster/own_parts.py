"""How classes and functions of the user's own get to the processes of a cluster.

What a script or a notebook defines itself always travels by value. Of modules beside it the processes of a cluster of
our own import what the driver can; those of another cluster do not have them, so they travel by value, too.
"""

import io
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import PicklingError
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ray import cloudpickle

from actors.cluster.attach import PACKAGES
from fedraa.errors import InputError, short_text

if TYPE_CHECKING:
    from fedraa.engine.run_spec import RunSpec

registry: Any = cloudpickle  # whose functions have no types
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
SITES = ("site-packages", "dist-packages")
PATH = "PYTHONPATH"


def refuse_unsendable(spec: "RunSpec") -> None:
    """Raise InputError for a component of a run that cannot be pickled."""
    if (wrong := _unsendable(spec)) is None:
        return
    parts = (*spec.experiment, ("dataset", spec.data.source), ("model", spec.traced.module))
    given = ((name, value) for name, value in parts if _unsendable(value))
    name, value = next(given, ("engine", "a part of this run"))
    what = f"the {name} that was given" if name in spec.given else short_text(value)
    raise InputError(
        name,
        f"{what} cannot be sent to Ray's processes: {wrong}",
        hint="let it make what cannot be pickled when it is first used, or choose --engine local",
    )


def _unsendable(part: object) -> str | None:
    try:
        pickler: Any = registry.CloudPickler(io.BytesIO(), protocol=5, buffer_callback=lambda buffer: None)
        pickler.dump(part)
    except Exception as error:  # whatever a part of the user's own does
        return str(error) or type(error).__name__
    return None


def carry_by_value(parts: Iterable[object]) -> None:
    """Let pickles hold the user's modules that these objects need from now on, so that no node must have them.

    Raises InputError if the objects cannot be pickled so.
    """
    parts = list(parts)
    while True:
        finder = _Finder(io.BytesIO(), protocol=5, buffer_callback=lambda buffer: None)
        try:
            finder.dump(parts)  # type: ignore[no-untyped-call]  # cloudpickle has no types
        except (TypeError, AttributeError, PicklingError) as error:
            raise InputError("address", f"a component of this run cannot be sent to another cluster: {error}") from None
        new = finder.modules.keys() - registry.list_registry_pickle_by_value()
        if not new:
            return
        for name in new:  # what these import shows when they are pickled themselves
            registry.register_pickle_by_value(finder.modules[name])


@contextmanager
def importable() -> Iterator[None]:
    """Python processes started within import the user's own modules from where this one does."""
    before = os.environ.get(PATH)
    folders = [folder for entry in sys.path if (folder := Path(entry).resolve()).is_dir()]
    os.environ[PATH] = os.pathsep.join(dict.fromkeys(str(one) for one in folders if not _is_installed(one)))
    try:
        yield
    finally:
        if before is None:
            del os.environ[PATH]
        else:
            os.environ[PATH] = before


class _Finder(cloudpickle.CloudPickler):
    """Pickles to nowhere, and notes the user's `modules` of which it finds something by reference."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]  # cloudpickle has no types
        self.modules: dict[str, ModuleType] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType | ModuleType):
            module = obj if isinstance(obj, ModuleType) else sys.modules.get(obj.__module__)
            if module is not None and _is_own(module):
                self.modules[module.__name__] = module
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]  # cloudpickle has no types


def _is_own(module: ModuleType) -> bool:
    """Whether this is source code of the user's, neither installed nor ours; `__main__` goes by value anyway."""
    root, file = module.__name__.partition(".")[0], getattr(module, "__file__", None)
    if root == "__main__" or root in PACKAGES or root in sys.stdlib_module_names or file is None:
        return False
    return file.endswith(".py") and not _is_installed(Path(file).resolve())


def _is_installed(path: Path) -> bool:
    return any(part in SITES for part in path.parts) or any(path.is_relative_to(root) for root in INSTALLED)
