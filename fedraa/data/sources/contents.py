"""The search for random generators in a data set object, and the measurement of its size in bytes."""

import copyreg
import dis
import pickle
import random
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

OWN_PACKAGES = ("fedraa", "actors", "schedulers")
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
SITES = ("site-packages", "dist-packages")
# A result of `reducer_override`: pickle stores the call `list()` in place of the object, and visits no part of it.
NOTHING = (list, ())
GLOBAL_OPS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL")

# `random.SystemRandom` is a subclass of `random.Random`. It has no state, so the search skips it.
ItemGenerator = random.Random | np.random.RandomState | np.random.BitGenerator | torch.Generator


@dataclass
class Contents:
    """The random generators in an object, and the sizes of its parts in bytes."""

    generators: list[ItemGenerator] = field(default_factory=list)
    array_bytes: int = 0
    """Bytes of NumPy arrays in memory. The processes of a Ray node share them."""
    file_bytes: int = 0
    """Bytes of NumPy arrays that are mapped from files. They need no memory."""
    copied_bytes: int = 0
    """All other bytes. Every process has a copy of them."""


def inspect_contents(holder: object) -> Contents:
    """Return the random generators in an object, and the sizes of its parts.

    The search includes attributes, and the closures and globals of the user's functions. In another process, a copy of
    the object gives the same order of generators.
    """
    contents = Contents()
    # The search may run the user's code, which may fail. The result is then incomplete.
    with suppress(Exception):
        _Walk(contents).dump(holder)
    return contents


class _Sink:
    """An output stream that only counts bytes."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def write(self, piece: Any) -> int:
        size = memoryview(piece).nbytes
        self._contents.copied_bytes += size
        return size


class _Walk(pickle.Pickler):
    """A pickler that visits all parts of an object, even parts that cannot be pickled."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(_Sink(contents), protocol=5)
        self._contents = contents
        self._storages: set[int] = set()
        # The visited objects by id. The pickler itself does not detect cycles through functions, classes and objects
        # that cannot be pickled.
        self._visited: dict[int, object] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.random.Generator):
            obj = obj.bit_generator
        if isinstance(obj, ItemGenerator):
            self._note_generator(obj)
            return NOTHING
        if isinstance(obj, torch.Tensor):
            return self._count_tensor(obj)
        if isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
            return self._count_array(obj)
        if isinstance(obj, ModuleType | CodeType):
            return NOTHING
        if isinstance(obj, FunctionType):
            return self._visit_function(obj)
        if isinstance(obj, type):
            return self._visit_class(obj)
        return self._visit_object(obj)

    def _is_new(self, obj: object) -> bool:
        is_new = id(obj) not in self._visited
        self._visited[id(obj)] = obj
        return is_new

    def _note_generator(self, generator: ItemGenerator) -> None:
        known = any(generator is other for other in self._contents.generators)
        if not known and not isinstance(generator, random.SystemRandom):
            self._contents.generators.append(generator)

    def _count_tensor(self, tensor: torch.Tensor) -> Any:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # `untyped_storage` fails for a sparse tensor, because it has several storages.
            self._contents.copied_bytes += tensor.element_size() * tensor.numel()
            return NOTHING
        if storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            self._contents.copied_bytes += storage.nbytes()
        return NOTHING

    def _count_array(self, array: Any) -> Any:
        if _is_mapped(array):
            self._contents.file_bytes += array.nbytes
        else:
            self._contents.array_bytes += array.nbytes
        return NOTHING

    def _visit_function(self, function: FunctionType) -> Any:
        if not _is_users(function.__module__) or not self._is_new(function):
            return NOTHING
        return _visit_values(_function_contents(function))

    def _visit_object(self, obj: Any) -> Any:
        """Return a result of `reducer_override` that makes pickle visit the object.

        If the object cannot be pickled, pickle visits the object's attributes instead.
        """
        if type(obj) in copyreg.dispatch_table:
            return NotImplemented
        if isinstance(obj, property | classmethod | staticmethod):
            return list, ([getattr(obj, "fget", None), getattr(obj, "__func__", None)],)
        try:
            return obj.__reduce_ex__(5)
        # The user's object can raise any exception.
        except Exception:
            if not self._is_new(obj):
                return NOTHING
            return list, ([getattr(obj, "__dict__", None)],)

    def _visit_class(self, kind: type) -> Any:
        if _is_users(kind.__module__):
            if not self._is_new(kind):
                return NOTHING
            return _visit_values(vars(base) for base in kind.__mro__ if _is_users(base.__module__))
        owner = sys.modules.get(kind.__module__)
        if getattr(owner, kind.__qualname__, None) is kind:
            return NotImplemented
        return NOTHING


def _visit_values(parts: Any) -> Any:
    """Return a result of `reducer_override` that makes pickle visit the values of the dicts `parts`, sorted by key."""
    sorted_parts = [[part[name] for name in sorted(part)] for part in parts]
    return list, (sorted_parts,)


def _function_contents(function: FunctionType) -> Iterator[dict[str, Any]]:
    """Yield a function's closure variables, defaults and globals."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    yield {name: _cell_contents(cell) for name, cell in cells}
    yield {str(place): value for place, value in enumerate(function.__defaults__ or ())}
    yield dict(function.__kwdefaults__ or {})
    yield {
        name: function.__globals__[name]
        for name in _referenced_names(function.__code__)
        if name in function.__globals__
    }


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # A closure variable may have no value yet.
        return None


def _referenced_names(code: CodeType) -> set[str]:
    """Return the names of the global variables that a function uses.

    `co_names` also has the names of attributes. A copy of the function in another process has only the globals it uses.
    """
    inner = [_referenced_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    used = {str(instruction.argval) for instruction in dis.get_instructions(code) if instruction.opname in GLOBAL_OPS}
    return used.union(*inner)


def _is_mapped(array: Any) -> bool:
    while array is not None:
        if isinstance(array, np.memmap) and array.filename is not None:
            return True
        array = getattr(array, "base", None)
    return False


def _is_users(module: str | None) -> bool:
    """Return True if a module is the user's code. Installed modules and fedraa are not.

    A module that is not imported counts as the user's code, because a process may receive a class without its module.
    """
    if module == "__main__" or module is None:
        return True
    if module.partition(".")[0] in (*OWN_PACKAGES, *sys.stdlib_module_names):
        return False
    if module not in sys.modules:
        return True
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return False
    path = Path(file).resolve()
    installed = any(part in SITES for part in path.parts) or any(path.is_relative_to(root) for root in INSTALLED)
    return not installed
