"""Transforms against NumPy, errors about them before the start, and their random numbers from the run's seed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor

import fedraa as fl
from fedraa.data.transforms import make_transforms
from fedraa.data.transforms.images import Crop, Flip, Normalize
from fedraa.models.raw_input import RawInputModel
from fedraa.rng import generator

IMAGES = np.random.default_rng(0).standard_normal((6, 3, 8, 10)).astype(np.float32)


def test_a_crop_is_a_window_of_the_padded_image() -> None:
    changed = Crop(padding=2, fill=7.0).apply(torch.from_numpy(IMAGES), generator(3, "any")).numpy()
    tops, lefts = generator(3, "any").integers(0, 5, (2, 6))
    for image, top, left, got in zip(IMAGES, tops, lefts, changed, strict=True):
        padded = np.full((3, 12, 14), 7.0, np.float32)
        padded[:, 2:10, 2:12] = image
        np.testing.assert_array_equal(got, padded[:, top : top + 8, left : left + 10])
    assert len({(top, left) for top, left in zip(tops, lefts, strict=True)}) > 1


def test_flip_mirrors_a_random_share_of_images_from_left_to_right() -> None:
    changed = Flip(share=0.5).apply(torch.from_numpy(IMAGES), generator(3, "any")).numpy()
    mirrored = generator(3, "any").random(6) < 0.5
    assert 0 < mirrored.sum() < 6
    for image, turn, got in zip(IMAGES, mirrored, changed, strict=True):
        np.testing.assert_array_equal(got, image[:, :, ::-1] if turn else image)


def test_normalize_gives_each_channel_mean_0_and_deviation_1() -> None:
    x = IMAGES * np.array([1, 10, 100], np.float32).reshape(3, 1, 1) + 5
    changed = Normalize().fitted(torch.from_numpy(x)).apply(torch.from_numpy(x), generator(0, "any")).numpy()
    np.testing.assert_allclose(changed.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(changed.std(axis=(0, 2, 3)), 1, atol=1e-5)
    by_hand = (x - np.array([1, 2, 3]).reshape(3, 1, 1)) / np.array([4, 5, 6]).reshape(3, 1, 1)
    transforms = make_transforms(["normalize(mean=(1, 2, 3), std=(4, 5, 6))"], seed=0)
    np.testing.assert_allclose(transforms.fixed.all(x), by_hand, rtol=1e-6)


def test_normalize_ignores_samples_that_are_not_finite() -> None:
    x = IMAGES.copy()
    x[2, 1, 0, 0], x[4, 0, 3, 3] = np.nan, np.inf
    finite = Normalize().fitted(torch.from_numpy(IMAGES[[0, 1, 3, 5]]))
    assert Normalize().fitted(torch.from_numpy(x)) == finite


class Projection(fl.Transform):
    """A fixed transform with random coefficients."""

    random = False

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return x * torch.from_numpy(rng.standard_normal(x.shape[1:], np.float32))


class Reader(fl.Transform):
    """A fixed transform that draws a number, and does not use it."""

    random = False

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        rng.integers(10)
        return x.clone()


def test_loaded_model_has_the_random_numbers_of_the_fixed_transforms() -> None:
    """`normalize` is fitted to the projected samples. A transform does not change the random numbers of the next."""
    transforms = make_transforms([Reader(), Projection(), "normalize"], seed=4).fitted(IMAGES)
    inputs = transforms.fixed.all(IMAGES)
    np.testing.assert_allclose(inputs.mean(axis=(0, 2, 3)), 0, atol=1e-6)
    raw = RawInputModel(torch.nn.Identity(), None, transforms.fixed)
    np.testing.assert_array_equal(raw(torch.from_numpy(IMAGES)).numpy(), inputs)


def test_one_text_may_name_several_transforms_and_draws_differ_by_task() -> None:
    transforms = make_transforms(["crop(padding=1),flip", "normalize"], seed=4)
    assert [type(part) for part in transforms.parts] == [Crop, Flip, Normalize]
    assert [type(part) for part in transforms.fixed.parts] == [Normalize]
    x = torch.from_numpy(IMAGES)

    def made(client: int, turn: int) -> Tensor:
        augment = transforms.drawn.make_augmentation(client, turn)
        return torch.stack([augment(x), augment(x)])

    assert torch.equal(made(1, 0), made(1, 0))
    assert not torch.equal(made(1, 0), made(1, 1))
    assert not torch.equal(made(1, 0), made(2, 0))
    assert not torch.equal(*made(1, 0))


def test_torchvision_transforms_use_the_run_seed_and_keep_the_torch_state() -> None:
    transforms = make_transforms(["v2.RandomHorizontalFlip(p=0.5)"], seed=4)
    x = torch.from_numpy(IMAGES)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = transforms.make_augmentation(0, 0)(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(transforms.make_augmentation(0, 0)(x), first)
    assert not torch.equal(first, x)
    assert [part.random for part in make_transforms(["v2.Resize(4)", "v2.RandomErasing"], seed=0).parts] == [
        False,
        True,
    ]


def smaller(x: Tensor, rng: Any) -> Tensor:
    return x[:, :, 1:]


def spoilt(x: Tensor, rng: Any) -> Tensor:
    return torch.where(torch.arange(len(x))[:, None, None, None] == 1, float("nan"), x)


def in_place(x: Tensor, rng: Any) -> Tensor:
    return x.add_(1)


def from_elsewhere(x: Tensor, rng: Any) -> Tensor:
    return x + torch.rand(())


def broken(x: Tensor, rng: Any) -> Tensor:
    raise KeyError("what")


@pytest.mark.parametrize(
    ("part", "field", "shown"),
    [
        (smaller, "transforms: smaller", "[32, 1, 7, 8]"),
        (spoilt, "transforms: spoilt", "sample 1"),
        (in_place, "transforms: in_place", "argument"),
        (from_elsewhere, "transforms: from_elsewhere", "rng"),
        ("normalize(mean=(1, 2), std=(1, 2))", "transforms", "normalize"),
    ],
)
def test_wrong_transforms_are_refused_before_the_start(part: object, field: str, shown: str, tmp_path: Path) -> None:
    with refuses(field, shown):
        fl.run(engine="local", transforms=(part,), updates=2, quiet=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("transform", "shown"),
    [
        (broken, "broken failed with KeyError"),
        ("crop(padding=0)", "padding"),
        ("flip(share=2)", "share"),
        ("crp", "crop"),
        ("v2.NoSuch", "NoSuch"),
    ],
)
def test_transforms_that_cannot_be_made_are_refused(transform: object, shown: str) -> None:
    with pytest.raises(ValueError, match=f"^transforms[.:][^\n]*{shown}"):
        fl.run(engine="local", transforms=(transform,), updates=2, quiet=True)


def test_image_transform_is_refused_for_inputs_that_are_not_images(tmp_path: Path) -> None:
    dataset = fl.Dataset("flat", np.zeros((20, 4)), np.arange(20) % 2, np.zeros((4, 4)), np.arange(4) % 2, 2)
    with refuses("transforms", "crop", "[4]"):
        fl.run(engine="local", transforms=("crop",), clients=2, dataset=dataset, out=tmp_path / "run")


def test_config_records_transform_objects_as_text(tmp_path: Path) -> None:
    history = fl.run(
        engine="local", transforms=(Crop(padding=1), "flip"), updates=2, quiet=True, clients=2, out=tmp_path / "run"
    )
    assert history.config["experiment"]["transforms"] == ["Crop(padding=1)", "flip"]
