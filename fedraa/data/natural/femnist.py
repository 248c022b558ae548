"""FEMNIST: images of handwritten digits and letters, 62 classes. A client is a writer (Caldas et al. 2018)."""

import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.natural.folders import find_folder, hold_out_rows
from fedraa.data.natural.leaf import as_classes, has_leaf_files, read_leaf
from fedraa.data.natural.tables import find_tables, name_cell, read_tables
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.tree import Array
from fedraa.errors import InputError

GET = "hf download flwrlabs/femnist --repo-type dataset --local-dir femnist, or data/femnist/preprocess.sh of LEAF"
CLASSES = 62
SIDE = 28


def read_femnist(data_dir: Path | None) -> FederatedDataset:
    """Return FEMNIST: images, float32 [n, 1, 28, 28] from 0 (ink) to 1, and labels 0 to 61 (0-9, A-Z, a-z).

    The files are LEAF's or `flwrlabs/femnist` of Hugging Face. Hugging Face has no test split, so a fifth of each
    writer's images become test images. (torchvision's EMNIST has transposed images with light ink.)
    """
    root = find_folder("femnist", data_dir, lambda root: has_leaf_files(root) or bool(find_tables(root, "train")), GET)
    if has_leaf_files(root):
        train, test = read_leaf(root, _convert_images)
        pairs = [(np.concatenate(split.x), np.concatenate(split.y)) for split in (train, test)]
        return FederatedDataset("femnist", pairs[0], pairs[1], CLASSES, train.owners, test.owners)
    frame = read_tables(find_tables(root, "train"), ("image", "writer_id", "character"))
    place = partial(name_cell, frame)
    x = np.stack([_decode_image(place("image", row), image["bytes"]) for row, image in enumerate(frame["image"])])
    y = as_classes(frame["character"], range(CLASSES), partial(place, "character"))
    owners = frame["writer_id"].to_numpy(str)
    held = hold_out_rows(owners, "femnist")
    train_owners, test_owners = owners[~held].tolist(), owners[held].tolist()
    return FederatedDataset("femnist", (x[~held], y[~held]), (x[held], y[held]), CLASSES, train_owners, test_owners)


def _convert_images(x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    images = np.stack([_convert_pixels(f"x {place}", image) for place, image in enumerate(x)])
    return images.reshape(-1, 1, SIDE, SIDE), as_classes(y, range(CLASSES))


def _convert_pixels(field: str, image: Any) -> Array:
    """Return the pixels of an image, float32 [784]. `field` names the image in errors."""
    expected = f"{SIDE * SIDE} numbers from 0 to 1"
    try:
        pixels = np.asarray(image, np.float32)
    except (TypeError, ValueError):
        raise InputError(field, got=image, expected=expected) from None
    if pixels.shape != (SIDE * SIDE,):
        raise InputError(field, got=image, expected=expected)
    wrong = pixels[~((pixels >= 0) & (pixels <= 1))]
    if wrong.size:
        raise InputError(field, got=float(wrong[0]), expected=expected)
    return pixels


def _decode_image(field: str, encoded: bytes) -> Array:
    """Return the pixels of a PNG file, float32 [1, 28, 28]. `field` names the image in errors."""
    # Pillow is an optional dependency.
    from PIL import Image

    try:
        pixels = np.asarray(Image.open(io.BytesIO(encoded)).convert("L"), np.float32) / 255
    # A decoder can raise any exception.
    except Exception as error:
        raise InputError(field, f"it cannot be read ({error})") from None
    if pixels.shape != (SIDE, SIDE):
        raise InputError(field, got=pixels, expected=f"{SIDE} x {SIDE} pixels")
    return pixels[None]
