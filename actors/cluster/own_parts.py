"""Transfer of the user's classes and functions to the processes of a cluster.

A private cluster imports the user's modules from the driver's folders. Other clusters do not have these modules. For
those clusters, the user's classes and functions are pickled by value, like those of scripts and notebooks.
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
from typing import Any

from ray import cloudpickle

from actors.cluster.attach import PACKAGES
from actors.cluster.environment import set_variables
from fedraa.errors import InputError

registry: Any = cloudpickle
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
SITES = ("site-packages", "dist-packages")
PATH = "PYTHONPATH"


def carry_by_value(parts: Iterable[object]) -> None:
    """Find the user's modules that the objects in `parts` need, and make Ray pickle these modules by value.

    The nodes of a cluster then need not have the modules. Raises InputError if the objects cannot be pickled.
    """
    parts = list(parts)
    while True:
        finder = _Finder(io.BytesIO(), protocol=5, buffer_callback=lambda buffer: None)
        try:
            # cloudpickle has no types.
            finder.dump(parts)  # type: ignore[no-untyped-call]
        except (TypeError, AttributeError, PicklingError) as error:
            raise InputError("address", f"a component of this run cannot be sent to another cluster: {error}") from None
        new = finder.modules.keys() - registry.list_registry_pickle_by_value()
        if not new:
            return
        # The next pass of the loop finds the modules that the new modules use.
        for name in new:
            registry.register_pickle_by_value(finder.modules[name])


@contextmanager
def share_import_paths() -> Iterator[None]:
    """Set PYTHONPATH in the block, so that child processes find the user's modules."""
    folders = [Path(entry).resolve() for entry in sys.path]
    of_user = [str(folder) for folder in folders if folder.is_dir() and not _is_installed(folder)]
    with set_variables({PATH: os.pathsep.join(dict.fromkeys(of_user))}):
        yield


class _Finder(cloudpickle.CloudPickler):
    """A pickler that collects the user's modules, so that `carry_by_value` can make Ray pickle them by value.

    Attributes:
        modules: The modules by name.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        # cloudpickle has no types.
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self.modules: dict[str, ModuleType] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType | ModuleType):
            module = obj if isinstance(obj, ModuleType) else sys.modules.get(obj.__module__)
            if module is not None and _is_own(module):
                self.modules[module.__name__] = module
        # cloudpickle has no types.
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _is_own(module: ModuleType) -> bool:
    """Return True if a module is the user's own code.

    The result is False for installed packages, for fedraa, and for `__main__`, which is always pickled by value.
    """
    root = module.__name__.partition(".")[0]
    file = getattr(module, "__file__", None)
    if root == "__main__" or root in PACKAGES or root in sys.stdlib_module_names or file is None:
        return False
    return file.endswith(".py") and not _is_installed(Path(file).resolve())


def _is_installed(path: Path) -> bool:
    return any(part in SITES for part in path.parts) or any(path.is_relative_to(root) for root in INSTALLED)
