"""CelebA: photographs with the labels smiling or not. A client is a celebrity (Caldas et al. 2018)."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.natural.folders import find_folder
from fedraa.data.natural.leaf import LeafSplit, as_classes, has_leaf_files, read_leaf
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.sources.image_files import ImageFormat
from fedraa.data.sources.rows import ImageRows
from fedraa.data.tree import Array
from fedraa.errors import InputError

GET = "data/celeba/README.md of https://github.com/TalwalkarLab/leaf, then preprocess.sh there"
IMAGES = Path("raw", "img_align_celeba")
SIDE = 84
"""Side of the images in pixels, as in the model of LEAF."""


def read_celeba(data_dir: Path | None) -> FederatedDataset:
    """Return CelebA: images, float32 [n, 3, 84, 84] from 0 to 1, and labels, 1 for a smile.

    Clients read their images when they train. LEAF's files contain only the names of images. The images are in the
    folder `raw/img_align_celeba` beside `train` and `test`.
    """
    root = find_folder("celeba", data_dir, has_leaf_files, GET)
    train, test = read_leaf(root, _convert_names)
    rows = [_make_rows(root / IMAGES, split) for split in (train, test)]
    return FederatedDataset("celeba", rows[0], rows[1], 2, train.owners, test.owners)


def _convert_names(x: list[Any], y: list[Any]) -> tuple[list[Any], Array]:
    for place, name in enumerate(x):
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(f"x {place}", got=name, expected="the name of an image, as in 000123.jpg")
    return x, as_classes(y, range(2))


def _make_rows(folder: Path, split: LeafSplit) -> ImageRows:
    paths = tuple(folder / name for name in chain.from_iterable(split.x))
    for path in paths:
        if not path.is_file():
            raise InputError(str(path), "there is no such image", hint="put CelebA's aligned images into this folder")
    return ImageRows(paths, np.concatenate(split.y), ImageFormat("RGB", SIDE))
