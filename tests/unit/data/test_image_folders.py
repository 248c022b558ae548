"""Folders of images of users: links, hidden files, different colours and sizes, broken files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from refusals import refuses

import fedraa as fl
from fedraa.data import load_dataset
from fedraa.data.sources.files import read_folder

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)


def image(mode: str = "RGB", size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.fromarray(PIXELS).convert(mode).resize(size)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with three images of each of two classes in train and in test."""
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(3):
                image().save(tmp_path / split / name / f"{i}.png")
    return tmp_path


def counts(root: Path, **options: Any) -> list[int]:
    """Return the number of training images of each class."""
    return [int(count) for count in np.bincount(read_folder(str(root), **options).train.labels())]


def test_linked_class_folders_are_read(root: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(root / split / "cat", root / f"birds-{split}")
        (root / split / "bird").symlink_to(root / f"birds-{split}")
    (root / "train" / "dog" / "linked.png").symlink_to(root / "train" / "cat" / "0.png")
    data = read_folder(str(root))
    assert data.classes == 3
    assert counts(root) == [3, 3, 4]


def test_cyclic_folder_link_adds_no_images(root: Path) -> None:
    (root / "train" / "cat" / "back").symlink_to(root / "train")
    assert counts(root) == [3, 3]


def test_hidden_files_and_folders_are_ignored(root: Path) -> None:
    for hidden in (".ipynb_checkpoints", "__MACOSX", "cat/.thumbnails"):
        (root / "train" / hidden).mkdir()
        image().save(root / "train" / hidden / "0.png")
    for name in ("._0.png", ".DS_Store", "Thumbs.db"):
        (root / "train" / "cat" / name).write_text("x")
    assert read_folder(str(root)).classes == 2
    assert counts(root) == [3, 3]


def test_warning_counts_the_files_that_are_not_images(root: Path) -> None:
    (root / "train" / "cat" / "a.heic").write_text("x")
    with pytest.warns(fl.RunWarning, match=" 1 file without"):
        read_folder(str(root))
    (root / "train" / "notes.txt").write_text("x")
    with pytest.warns(fl.RunWarning, match=" 2 files "):
        assert counts(root) == [3, 3]


@pytest.mark.parametrize("name", ["x.JPG", "x.webp", "x.gif", "x.bmp", "x.tiff"])
def test_common_image_formats_are_read(name: str, root: Path) -> None:
    image().save(root / "train" / "dog" / name)
    assert counts(root) == [3, 4]
    x, _ = read_folder(str(root)).train.read(np.arange(7))
    assert x.shape == (7, 3, 8, 8)


@pytest.mark.parametrize(
    ("mode", "name"),
    [("L", "x.png"), ("1", "x.png"), ("P", "x.png"), ("RGBA", "x.png"), ("LA", "x.png"), ("CMYK", "x.jpg")],
)
@pytest.mark.parametrize("size", [None, 4])
def test_image_of_another_mode_among_rgb_images_becomes_rgb(mode: str, name: str, size: int | None, root: Path) -> None:
    path = root / "train" / "dog" / name
    image(mode).save(path)
    rows = read_folder(str(root), size=size).train
    x, _ = rows.read(np.arange(7))
    with Image.open(path) as opened:
        colours = opened.convert("RGB")
        wanted = np.asarray(colours if size is None else colours.resize((size, size)), np.float32)
    # The other images are equal, so that the scale and the shift of the channels follow from two of their pixels.
    plain = np.asarray(image() if size is None else image().resize((size, size)), np.float32)
    for channel in range(3):
        slope, shift = np.polyfit(plain[..., channel].ravel(), x[0, channel].ravel(), 1)
        np.testing.assert_allclose(x[6, channel], slope * wanted[..., channel] + shift, atol=1e-3)


def test_images_that_are_all_grey_have_one_channel(root: Path) -> None:
    for place, path in enumerate(root.rglob("*.png")):
        image(("L", "1", "LA")[place % 3]).save(path)
    x, _ = read_folder(str(root)).test.read(np.arange(6))
    assert x.shape == (6, 1, 8, 8)


def test_call_in_the_error_message_reads_images_of_different_sizes(root: Path) -> None:
    image(size=(9, 5)).save(root / "train" / "dog" / "x.png")
    with refuses(f"dataset: {root}/train/dog/x.png", "9 x 5") as mistake:
        load_dataset(f"folder:{root}", None)
    shown = str(mistake.value).partition('--dataset "')[2].rstrip('"')
    assert shown == f"folder({str(root)!r}, size=64)"
    data: Any = load_dataset(shown, None)
    assert data.train.read(np.arange(7))[0].shape == (7, 3, 64, 64)


@pytest.mark.parametrize(
    ("change", "file", "shown"),
    [
        (lambda root: (root / "train/cat/x.png").write_bytes(b"no image"), "train/cat/x.png", "image"),
        (lambda root: (root / "train/cat/x.png").write_bytes(b""), "train/cat/x.png", "image"),
        (lambda root: (root / "train/cat/x.png").symlink_to(root / "absent.png"), "train/cat/x.png", "absent.png"),
        (lambda root: (root / "train/bird").symlink_to(root / "absent"), "train/bird", "absent"),
        (lambda root: os.mkfifo(root / "train/cat/x.png"), "train/cat/x.png", "image"),
        (lambda root: (root / "train/bird").mkdir(), "train/bird", "image"),
        (lambda root: shutil.copytree(root / "test/cat", root / "test/bird"), "test/bird/0.png", "'bird'"),
        (lambda root: shutil.rmtree(root / "test"), "test", "test/CLASS"),
        (lambda root: [shutil.rmtree(root / split / "dog") for split in ("train", "test")], "train", "'cat'"),
        (
            lambda root: shutil.copytree(root / "train/cat", root / "train/cat/more"),
            "train/cat/more/0.png",
            "SPLIT/CLASS",
        ),
        (lambda root: shutil.copy(root / "train/cat/0.png", root / "train"), "train/0.png", "SPLIT/CLASS"),
        (
            lambda root: shutil.copytree(root / "train/cat", root / "train/a/b/c/d/e/f/g/h"),
            "train/a/b/c/d/e/f/g",
            "train",
        ),
    ],
)
def test_error_about_an_unreadable_image_folder_names_the_file(
    change: Callable[[Path], Any], file: str, shown: str, root: Path
) -> None:
    change(root)
    with refuses(f"dataset: {root}/{file}", shown) as mistake:
        load_dataset(f"folder:{root}", None)
    # Pillow's message repeats the path in quotes.
    assert f"'{root}/{file}'" not in str(mistake.value)


@pytest.mark.parametrize("size", [0, -1, "64", 2.5, True])
def test_size_that_is_not_a_positive_integer_is_refused(size: Any, root: Path) -> None:
    with refuses("size", got=size):
        read_folder(str(root), size=size)
