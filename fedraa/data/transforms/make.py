"""The transforms that were given, by name, import path, or as objects."""

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from fedraa.components.registry import Seam
from fedraa.data.transforms.images import Crop, Flip, Normalize
from fedraa.data.transforms.transform import Called, Transform, Transforms, called
from fedraa.data.transforms.vision import Vision
from fedraa.errors import short_text

TRANSFORMS: Seam[Any] = Seam("transforms", (), {"crop": Crop, "flip": Flip, "normalize": Normalize})
V2 = "torchvision.transforms.v2:"


def make_transforms(given: Sequence[object], *, seed: int) -> Transforms:
    """In their order; ValueError with one sentence for what is none.

    Each is crop, flip, normalize, `v2.NAME(...)` of torchvision, an import path, a Transform, a transform of
    torchvision's v2, or a function `(x, rng)`. `crop,flip` in one text are two.
    """
    return Transforms(tuple(make_transform(one) for each in given for one in _split(each)), seed)


def _split(given: object) -> list[object]:
    """The parts of a text between commas that are in no brackets."""
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
    """One of them."""
    if isinstance(given, str):
        given = re.sub(r"^v2[.:]", V2, given)
    made = TRANSFORMS.make(given)
    if isinstance(made, Transform):
        return made
    if isinstance(made, nn.Module):
        return Vision(made)
    function = getattr(made, "apply", made)
    if not callable(function):
        raise ValueError(f"transforms: {short_text(made)} has no method apply, and is no function (x, rng)")
    return Called(called(made), function)
