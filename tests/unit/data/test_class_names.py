"""Data sets that name their classes: a label means the same class in train and test. Rows are read by any sequence."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image
from refusals import refuses

import fedraa as fl


def table(*names: str) -> Any:
    """Stand in for a table of Hugging Face with a ClassLabel."""
    return SimpleNamespace(features={"image": None, "label": SimpleNamespace(names=list(names))})


def test_test_data_with_another_order_of_classes_are_refused() -> None:
    with refuses("dataset 'mine': label 1", "cat, dog, owl", "cat, owl, dog"):
        fl.FederatedDataset("mine", table("cat", "dog", "owl"), table("cat", "owl", "dog"))
    many = [str(place) for place in range(100)]
    with refuses("dataset 'mine': label 98", "98, 99", "99, 98"):
        fl.FederatedDataset("mine", table(*many), table(*many[:98], "99", "98"))
    folders = SimpleNamespace(classes=["a", "b"]), SimpleNamespace(classes=["b"])
    with refuses("dataset 'mine': label 0", "'a'", "'b'"):
        fl.FederatedDataset("mine", *folders)


def test_the_same_order_of_classes_is_accepted() -> None:
    fl.FederatedDataset("mine", table("cat", "dog"), table("cat", "dog"))
    fl.FederatedDataset("mine", table("cat", "dog"), table("cat"))
    fl.FederatedDataset("mine", table("cat", "dog"), table("dog", "cat"), target="image")
    fl.FederatedDataset("mine", table("cat", "dog"), (np.zeros((2, 2)), [0, 1]))


def test_folder_images_are_read_by_a_list_of_rows(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for place, name in enumerate(("a", "b")):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("L", (2, 2), 255 * place).save(tmp_path / split / name / "0.png")
    rows = fl.load_dataset(f"folder:{tmp_path}").test
    x, y = rows.read([1, 0])
    assert y.tolist() == [1, 0]
    assert x[:, 0, 0, 0].tolist() == [1.0, 0.0]
