"""Transforms. A transform changes samples before a client trains on them."""

from fedraa.data.transforms.make import make_transforms
from fedraa.data.transforms.transform import Transform, Transforms

__all__ = ["Transform", "Transforms", "make_transforms"]
