"""Image files in folders: their paths, their common format and their pixels."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.tree import Array
from fedraa.errors import InputError, RunWarning, locate_error, read_failure
from fedraa.numbers import format_count
from fedraa.reading.regular_files import refuse_irregular_file

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
GREY = ("1", "L", "LA", "La")
SYSTEM_FILES = ("__macosx", "thumbs.db", "desktop.ini")
MAX_DEPTH = 6


@dataclass(frozen=True)
class ImageFormat:
    """The common format of all images of a data set.

    Attributes:
        mode: `L` for grey images, or `RGB`.
        size: The height and width in pixels to which images are resized; None to keep their size.
    """

    mode: str
    size: int | None = None

    def read(self, path: Path) -> Array:
        """Return the pixels of a file, float32 [channels, height, width] from 0 to 1."""
        with _open_image(path) as image:
            try:
                plain = image.convert(self.mode)
                if self.size is not None:
                    plain = plain.resize((self.size, self.size))
                return image_array(plain)
            # A decoder can raise any exception.
            except Exception as error:
                raise _unreadable_image(path, error) from None


def find_images(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the sorted images below a folder, and the sorted empty folders.

    Links are followed, except links to a parent folder. Hidden files and folders are ignored. A warning is given for
    files with suffixes that are not in `IMAGES`.
    """
    images: list[Path] = []
    empty: list[Path] = []
    ignored: list[Path] = []
    for folder, files, has_folders in _walk_folders(root, ()):
        before = len(images)
        for file in files:
            if file.suffix.lower() in IMAGES:
                images.append(file)
            else:
                ignored.append(file)
        if len(images) == before and not has_folders:
            empty.append(folder)
    if not images:
        raise InputError(str(root), "there is no image in it", expected=f"files {', '.join(IMAGES[:3])}, ...")
    if ignored:
        count = format_count(len(ignored), "file")
        warnings.warn(
            f"dataset {str(root)!r}: it ignores {count} without the suffix of an image, such as {min(ignored)}",
            RunWarning,
            stacklevel=2,
        )
    return sorted(images), sorted(empty)


def common_format(root: str, paths: Sequence[Path], size: int | None) -> ImageFormat:
    """Return the common format of images: grey if all are grey, otherwise RGB.

    Args:
        root: The folder of the images, for errors.
        paths: The images.
        size: The height and width to which all images are resized; None to keep their size.

    Raises:
        InputError: A file cannot be opened, has more than 8 bits per colour, or, if `size` is None, has another size
            than the first image.
    """
    mode = "L"
    pixels = None
    for path in paths:
        with _open_image(path) as image:
            if image.mode not in GREY:
                mode = "RGB"
            if pixels is None:
                pixels = image.size
            elif size is None and image.size != pixels:
                raise InputError(
                    str(path),
                    f"it has {_format_size(image.size)} pixels",
                    expected=f"{_format_size(pixels)}, as {paths[0]} has",
                    hint=f'resize all images, as in --dataset "folder({root!r}, size=64)"',
                )
    return ImageFormat(mode, size)


def plain_image(image: Any) -> Any:
    """Convert a PIL image to grey or RGB. Raises InputError if it has more than 8 bits per colour."""
    _refuse_deep(image)
    if image.mode in GREY:
        return image.convert("L")
    return image.convert("RGB")


def image_array(image: Any) -> Array:
    """Return a PIL image as float32 [channels, height, width] from 0 to 1."""
    pixels = np.asarray(image, np.float32) / 255
    if pixels.ndim == 2:
        return pixels[None]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _walk_folders(folder: Path, around: tuple[str, ...]) -> Iterator[tuple[Path, list[Path], bool]]:
    """Yield each folder from `folder` downwards, its files, and True if it contains folders.

    `around` has the real paths of the parent folders. A link to one of them is not followed.
    """
    real = os.path.realpath(folder)
    if real in around:
        return
    if len(around) > MAX_DEPTH:
        raise InputError(str(folder), "it is too deep", expected="images in train/CLASS or in train/CLIENT/CLASS")
    try:
        names = sorted(name for name in os.listdir(folder) if not _is_hidden(name))
    except OSError as error:
        raise InputError(str(folder), f"it cannot be read ({error.strerror})") from None
    folders = [folder / name for name in names if (folder / name).is_dir()]
    files = [folder / name for name in names if not (folder / name).is_dir()]
    for file in files:
        if file.is_symlink() and not file.exists():
            problem = f"it is a link to {os.readlink(file)}, which does not exist"
            raise InputError(str(file), problem, hint="correct or remove it")
    yield folder, files, bool(folders)
    for inner in folders:
        yield from _walk_folders(inner, (*around, real))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_FILES


@contextmanager
def _open_image(path: Path) -> Iterator[Any]:
    """Open an image without decoding it."""
    # Pillow is an optional dependency.
    from PIL import Image

    try:
        refuse_irregular_file(path)
        image = Image.open(path)
        _refuse_deep(image)
    # A decoder can raise any exception.
    except Exception as error:
        raise _unreadable_image(path, error) from None
    with image:
        yield image


def _refuse_deep(image: Any) -> None:
    # Pillow would clip images of these modes to 8 bits.
    if image.mode.startswith(("I", "F")):
        raise InputError("image mode", got=image.mode, expected="8 bits for a colour", hint="convert it first")


def _unreadable_image(path: Path, error: Exception) -> InputError:
    if isinstance(error, InputError):
        return locate_error(error, str(path))
    # Pillow puts the path at the end of some messages.
    reason = read_failure(error).removesuffix(f" {str(path)!r}")
    return InputError(str(path), f"it cannot be read as an image ({reason})")


def _format_size(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
