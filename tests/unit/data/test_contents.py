"""Inspection of data set objects: their sizes and their random generators."""

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedraa.data.division import HELD_BYTES, _is_held
from fedraa.data.sources.contents import inspect_contents
from fedraa.data.sources.rows import TorchRows

BYTES = 3 * 2**20
ARRAY = np.zeros(BYTES // 4, np.float32)


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Refusing(Holder):
    """An object that refuses to be copied and pickled, like handles of h5py."""

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("cannot pickle")


def sizes(held: object) -> tuple[int, int, int]:
    contents = inspect_contents(held)
    return contents.array_bytes, contents.file_bytes, contents.copied_bytes


@pytest.mark.parametrize(
    "held",
    [
        ARRAY,
        [ARRAY],
        Holder(x=ARRAY, change=lambda x: x + 1, lock=threading.Lock()),
        Refusing(x=ARRAY),
        pd.DataFrame({"a": ARRAY}),
        lambda: ARRAY[0],
        np.array([ARRAY, None], object),
    ],
)
def test_numpy_arrays_inside_any_object_count_as_arrays(held: object) -> None:
    arrays, files, copied = sizes(held)
    assert arrays == pytest.approx(BYTES, rel=0.01)
    assert files == 0
    assert copied < 5000


@pytest.mark.parametrize(
    "held",
    [
        torch.zeros(BYTES // 4),
        torch.zeros(BYTES // 4).share_memory_(),
        torch.zeros(BYTES // 4)[:3],
        [tensor := torch.zeros(BYTES // 4), tensor.view(2, -1)],
        torch.nn.Parameter(torch.zeros(BYTES // 4)),
        b"x" * BYTES,
        [Image.fromarray(np.zeros((512, 512, 3), np.uint8)) for _ in range(4)],
    ],
)
def test_tensors_bytes_and_images_count_as_copied(held: object) -> None:
    arrays, files, copied = sizes(held)
    assert (arrays, files) == (0, 0)
    assert copied == pytest.approx(BYTES, rel=0.01)


def test_memory_mapped_arrays_count_as_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAY)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for held in (mapped, mapped[None], np.asarray(mapped)):
        assert sizes(Holder(x=held))[:2] == (0, BYTES)


@pytest.mark.parametrize("kind", [np, torch])
@pytest.mark.parametrize("more", [0, 2000])
def test_only_data_sets_over_the_limit_are_read_into_arrays(kind: Any, more: int) -> None:
    samples = kind.zeros(HELD_BYTES // 4 - 1000 + more, dtype=kind.float32)
    assert _is_held(TorchRows(Holder(x=samples))) == bool(more)


def test_random_generators_are_found_once_and_in_order() -> None:
    numbers, python, mine = np.random.default_rng(0), random.Random(0), torch.Generator()
    state = np.random.RandomState(0)
    inner = [python, Refusing(rng=mine), numbers.bit_generator, random.SystemRandom()]
    inner[1].again = inner[1]  # type: ignore[attr-defined, union-attr]
    held = Holder(a=numbers, b=inner, c=lambda: state.rand())
    assert inspect_contents(held).generators == [numbers.bit_generator, python, mine, state]


def test_recursive_code_is_visited_once() -> None:
    state = np.random.RandomState(0)

    class Parent:
        def __init__(self) -> None:
            super().__init__()
            self.x = ARRAY

        def again(self, count: int) -> Any:
            return Child() if count else state.rand()

    class Child(Parent):
        @property
        def value(self) -> Any:
            return recursive(3)

    def recursive(count: int) -> Any:
        return recursive(count - 1) if count else Child().again(1)

    contents = inspect_contents(Child())
    assert contents.generators == [state]
    assert contents.array_bytes == BYTES


rng = np.random.default_rng(4)


class DrawsFromItself:
    """A data set with an attribute `rng`. A global variable that it does not use has the same name."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __getitem__(self, row: int) -> float:
        return float(self.rng.random())


def test_attribute_with_the_name_of_a_global_generator_adds_no_generator() -> None:
    data = DrawsFromItself()
    assert inspect_contents(data).generators == [data.rng.bit_generator]
