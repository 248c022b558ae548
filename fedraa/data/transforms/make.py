"""Creation of transforms from names, import paths or objects."""

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from fedraa.components.registry import ComponentRegistry
from fedraa.data.transforms.images import Crop, Flip, Normalize
from fedraa.data.transforms.transform import Called, Transform, Transforms, called
from fedraa.data.transforms.vision import Vision
from fedraa.errors import InputError

TRANSFORMS: ComponentRegistry[Any] = ComponentRegistry(
    "transforms", (), {"crop": Crop, "flip": Flip, "normalize": Normalize}
)
V2 = "torchvision.transforms.v2:"


def make_transforms(given: Sequence[object], *, seed: int) -> Transforms:
    """Return the transforms in their order; raise InputError for anything that is not a transform.

    A transform is crop, flip, normalize, `v2.NAME(...)` of torchvision, an import path, a Transform, a transform of
    torchvision's v2, or a function `(x, rng)`. One string may list several, as in `crop,flip`.
    """
    parts = []
    for item in given:
        parts += [make_transform(part) for part in _split(item)]
    return Transforms(tuple(parts), seed)


def _split(given: object) -> list[object]:
    """Return a string split at the commas outside brackets, or a list with `given` if it is not a string."""
    if not isinstance(given, str):
        return [given]
    parts, depth = [""], 0
    for letter in given:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def make_transform(given: object) -> Transform:
    """Return the transform that `given` describes; `make_transforms` lists the accepted forms."""
    if isinstance(given, str):
        given = re.sub(r"^v2[.:]", V2, given)
    made = TRANSFORMS.resolve(given)
    if isinstance(made, Transform):
        return made
    if isinstance(made, nn.Module):
        return Vision(made)
    function = getattr(made, "apply", made)
    if not callable(function):
        raise InputError("transforms", got=made, expected="a function (x, rng), or an object with a method apply")
    return Called(called(made), function)
