"""Import torchvision even if its compiled operators do not load. Those of PyPI do not load with a torch without CUDA.

Its data sets, transforms and models need none of these operators, but two of them are named during the import, which
then fails. If the import fails, in a user's model or in a worker that reads a pickle, these two are declared and the
import is repeated.
"""

from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NAME = "torchvision"
# A declaration lasts as long as its library.
_declared: list[Any] = []


class Finder(MetaPathFinder):
    """An import finder that finds only torchvision, at its usual place."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patient(spec.loader)
        return spec


class _Patient(Loader):
    """A loader that repeats a failed load with the operators declared, if they were missing."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        # Other attributes, such as those for resources and source code, come from the original loader.
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        try:
            self._loader.exec_module(module)
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
            _declare_operators()
            self._loader.exec_module(module)


def _declare_operators() -> None:
    """Declare the two missing operators."""
    import torch

    # torch leaves the methods of its libraries untyped.
    library = torch.library.Library(NAME, "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        signature = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(signature)  # type: ignore[no-untyped-call]
    _declared.append(library)
