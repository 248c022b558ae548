"""Synthetic samples with each type of target, for the checks of components."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedraa.config.experiment import Experiment
from fedraa.data import Dataset, FederatedDataset
from fedraa.models.lora import lora

CLASSES = 10
TRAIN = 400
TEST = 100


@dataclass(frozen=True)
class SmallExperiment:
    """A small experiment and its samples. A function creates the model if no built-in model fits."""

    experiment: Experiment
    dataset: Dataset | FederatedDataset
    model: Callable[[], nn.Module] | None = None

    def __post_init__(self) -> None:
        """Reset the field `hidden` if a function creates the model, because the field would have no effect."""
        if self.model is not None:
            default = {"hidden": Experiment.model_fields["hidden"].default}
            object.__setattr__(self, "experiment", self.experiment.model_copy(update=default))

    def module(self) -> nn.Module | None:
        """Return a new model with the same initial weights on every call."""
        if self.model is None:
            return None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return self.model()


@cache
def make_vectors() -> Dataset:
    """Return samples of 16 random numbers, whose means differ between the 10 classes."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, 16))
    labels = rng.permutation(np.arange(TRAIN + TEST) % CLASSES)
    samples = (centres[labels] + rng.standard_normal((len(labels), 16))).astype(np.float32)
    return _split_samples(samples, labels, CLASSES)


@cache
def make_images(channels: int) -> Dataset:
    """Return noisy images of 8 x 8 pixels, with one colour per class."""
    rng = np.random.default_rng(1)
    labels = rng.permutation(np.arange(TRAIN + TEST) % CLASSES)
    colours = rng.standard_normal((CLASSES, channels, 1, 1))
    return _split_samples((colours[labels] + rng.standard_normal((len(labels), channels, 8, 8))), labels, CLASSES)


@cache
def make_number_targets(outputs: int) -> Dataset:
    """Return samples with one real number as the target. The target of the first test sample is 0.

    A built-in model for these samples has `outputs` outputs.
    """
    x = make_vectors()
    both = np.concatenate([x.x_train, x.x_test])
    y = (both[:, 0] - 2 * both[:, 1] + 0.1).astype(np.float32)
    y[TRAIN] = 0.0
    return _split_samples(both, y, 0 if outputs == 1 else outputs)


@cache
def make_binary_targets() -> Dataset:
    """Return samples with five binary targets each."""
    data = make_number_targets(1)
    both = np.concatenate([data.x_train, data.x_test])
    return _split_samples(both, (both[:, :5] > 0).astype(np.float32), 0)


@cache
def make_tokens() -> Dataset:
    """Return sequences of token ids that increase by one. The target of each token is the next token."""
    runs = (np.random.default_rng(2).integers(0, CLASSES, (TRAIN + TEST, 1)) + np.arange(9)) % CLASSES
    return _split_samples(runs[:, :-1], runs[:, 1:], CLASSES)


@cache
def make_pixels() -> Dataset:
    """Return images of two channels. The label of a pixel is the number of its brighter channel."""
    x = np.random.default_rng(3).standard_normal((TRAIN + TEST, 2, 6, 6))
    return _split_samples(x, x.argmax(axis=1), 2)


def token_model(classes: int) -> Callable[[], nn.Module]:
    """Return a function that creates a model for sequences of tokens."""
    return lambda: nn.Sequential(nn.Embedding(classes, 8), nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, classes))


def adapter_model() -> nn.Module:
    """Return a model for the samples of `make_vectors`. It has low-rank adapters that FLoRA can merge."""
    layers = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, CLASSES))
    return lora(layers, rank=4, merge=True)


def pixel_model(channels: int, classes: int) -> Callable[[], nn.Module]:
    """Return a function that creates a model with outputs for every pixel."""
    return lambda: nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 1))


class Task(NamedTuple):
    """A learning task: samples, the shape of the output for one sample, and a function that creates a model.

    If a built-in model fits the samples, the function is None.
    """

    data: Dataset
    outputs: tuple[int, ...]
    model: Callable[[], nn.Module] | None = None


def list_tasks() -> tuple[Task, ...]:
    """Return all learning tasks. Tasks with real numbers as targets come first."""
    return (
        Task(make_number_targets(1), (1,)),
        Task(make_number_targets(2), (2,)),
        Task(make_vectors(), (CLASSES,)),
        Task(make_binary_targets(), (5,)),
        Task(make_tokens(), (8, CLASSES), token_model(CLASSES)),
        Task(make_pixels(), (2, 6, 6), pixel_model(2, 2)),
    )


def _split_samples(x: Any, y: Any, classes: int) -> Dataset:
    if x.dtype.kind == "f":
        x = x.astype(np.float32)
    return Dataset("made up", x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:], classes)
