"""Transforms. A transform changes samples before a client trains on them."""

from fedraa.data.transforms.images import Crop, Flip, Normalize
from fedraa.data.transforms.make import TRANSFORMS, make_transforms
from fedraa.data.transforms.transform import Transform, Transforms

__all__ = ["TRANSFORMS", "Crop", "Flip", "Normalize", "Transform", "Transforms", "make_transforms"]
