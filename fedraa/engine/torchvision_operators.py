"""Import torchvision even if its compiled operators do not load.

The compiled operators in PyPI's wheel of torchvision do not load with a build of torch without CUDA. The import then
fails, although torchvision's data sets, transforms and models use none of them. This module declares the two operators
that the import needs, and repeats the import. The user's code may import torchvision, and so may a worker that
unpickles an object of the user.
"""

from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NAME = "torchvision"
# torch removes the declarations of a library that is deleted.
_declared: list[Any] = []


class Finder(MetaPathFinder):
    """An import finder that finds only torchvision, and loads it with a `_RetryingLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RetryingLoader(spec.loader)
        return spec


class _RetryingLoader(Loader):
    """A loader that, after a failed load, declares missing operators and loads again."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        # All other attributes are those of the original loader.
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
    import torch

    # The methods of torch.library.Library have no type annotations.
    library = torch.library.Library(NAME, "FRAGMENT")
    for operator in ("nms", "qnms"):
        signature = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(signature)
    _declared.append(library)
