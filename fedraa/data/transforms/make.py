"""Creation of transforms from names, import paths or objects."""

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from fedraa.components.registry import ComponentRegistry
from fedraa.data.transforms.images import Crop, Flip, Normalize
from fedraa.data.transforms.transform import Called, Transform, Transforms, transform_name
from fedraa.data.transforms.vision import Vision
from fedraa.errors import InputError

TRANSFORMS: ComponentRegistry[Any] = ComponentRegistry(
    "transforms", (), {"crop": Crop, "flip": Flip, "normalize": Normalize}
)
V2 = "torchvision.transforms.v2:"


def make_transforms(descriptions: Sequence[object], *, seed: int) -> Transforms:
    """Return the transforms that the user describes, in the same order.

    Args:
        descriptions: Each is a text or an object. A text is crop, flip, normalize, `v2.NAME(...)` of torchvision, an
            import path, or several of them as in `crop,flip`. An object is a Transform, a transform of torchvision's
            v2, a function `(x, rng)`, or an object with a method `apply(x, rng)`.
        seed: The seed of the run.

    Raises:
        InputError: A description has another form.
    """
    parts = []
    for item in descriptions:
        parts += [make_transform(part) for part in _split_names(item)]
    return Transforms(tuple(parts), seed)


def _split_names(description: object) -> list[object]:
    """Split a text at the commas that are not in brackets. If the description is not a text, return it in a list."""
    if not isinstance(description, str):
        return [description]
    parts = [""]
    depth = 0
    for letter in description:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def make_transform(description: object) -> Transform:
    """Return the transform that `description` describes (see `make_transforms`)."""
    if isinstance(description, str):
        description = re.sub(r"^v2[.:]", V2, description)
    transform = TRANSFORMS.resolve(description)
    if isinstance(transform, Transform):
        return transform
    if isinstance(transform, nn.Module):
        return Vision(transform)
    function = getattr(transform, "apply", transform)
    if not callable(function):
        raise InputError("transforms", got=transform, expected="a function (x, rng), or an object with a method apply")
    return Called(transform_name(transform), function)
