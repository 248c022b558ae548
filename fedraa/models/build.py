"""Models by name."""

import inspect
import math
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from fedraa.components import imported, path_of
from fedraa.data.tree import Tree, leaves, mapped
from fedraa.errors import without_effect
from fedraa.models.cnn import cnn, emnist_cnn, wide_cnn
from fedraa.models.fasttext import FastText
from fedraa.models.forward import forward
from fedraa.models.mlp import mlp
from fedraa.models.resnet import preact_resnet18, resnet18, resnet18_bn, resnet18_scaler
from fedraa.models.vit import vit, vit_small

# Each is made from (channels, height, width, classes) and takes images with sides of at least the number.
# With batch norm that leaves the last stage more than one pixel, so that a batch of one can be normalised.
_IMAGE_MODELS: dict[str, tuple[Callable[[int, int, int, int], nn.Module], int]] = {
    "cnn": (cnn, 4),
    "cnn-wide": (wide_cnn, 8),
    "cnn-emnist": (emnist_cnn, 6),
    "resnet18": (resnet18, 1),
    "resnet18-bn": (resnet18_bn, 9),
    "resnet18-scaler": (resnet18_scaler, 1),
    "preact-resnet18": (preact_resnet18, 9),
    "vit-small": (vit_small, 4),
    "vit": (vit, 4),
}

MODELS: tuple[str, ...] = ("mlp", *_IMAGE_MODELS, "fasttext")

_HIDDEN = (200,)


def build_model(
    given: object,
    sample: Tree,
    classes: int,
    *,
    hidden: tuple[int, ...] = _HIDDEN,
    dropout: float = 0.0,
    seed: int = 0,
    misfit: Callable[[Any], str | None] | None = None,
) -> nn.Module:
    """A freshly initialised model that maps a batch like `sample`, `[b, ...]`, to logits `[b, classes]`.

    `given` is one of `MODELS`, or `package.module:callable`, or such a function or class itself; it is called with
    `classes=classes` if it takes that, else without arguments, and must return an `nn.Module`. `misfit` says what is
    wrong with what it makes of the first two of `sample`, if that is not to be logits. `hidden` and
    `dropout` describe the mlp. The same seed gives the same weights, bit for bit, and torch's global generator is
    left as it was.

    Raises ValueError with one sentence if the name is unknown, the model cannot be made, or it does not fit
    `sample`.
    """
    name = given if isinstance(given, str) else path_of(given)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if not isinstance(sample, torch.Tensor) and (name == "mlp" or name in MODELS):
            raise ValueError(f"model {name!r} takes one input, and samples have {len(leaves(sample))}; give your own")
        if name == "mlp":
            model = _mlp(sample, classes, hidden, dropout)
        elif hidden != _HIDDEN:
            raise ValueError(without_effect("hidden", hidden, f"model {name}", "give --model mlp, or leave it out"))
        elif dropout != 0.0:
            raise ValueError(without_effect("dropout", dropout, f"model {name}", "give --model mlp, or leave it out"))
        elif not isinstance(given, str) or ":" in name:
            model = _own(name, given, classes)
        elif name in _IMAGE_MODELS:
            model = _image_model(name, sample, classes)
        elif name == "fasttext":
            model = FastText(classes)
        else:
            known, close = ", ".join(MODELS), get_close_matches(name, MODELS, n=1, cutoff=0.72)
            hint = f"did you mean {close[0]}? it" if close else "it"
            raise ValueError(f"model is {name!r}; {hint} must be one of {known}, or package.module:callable")
        _refuse_misfit(name, model, mapped(lambda part: part[:2], sample), classes, misfit)
    return model


def _mlp(sample: torch.Tensor, classes: int, hidden: tuple[int, ...], dropout: float) -> nn.Module:
    if any(width < 1 for width in hidden):
        raise ValueError(f"hidden is {hidden}; every width must be at least 1")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; it must be at least 0 and less than 1")
    return mlp(math.prod(sample.shape[1:]), classes, hidden, dropout)


def _image_model(name: str, sample: torch.Tensor, classes: int) -> nn.Module:
    make, smallest = _IMAGE_MODELS[name]
    if sample.ndim != 4 or min(sample.shape[2:]) < smallest:
        raise ValueError(
            f"model {name!r} takes images [channels, height, width] with sides of at least {smallest}; "
            f"the samples are {list(sample.shape[1:])}"
        )
    _, channels, height, width = sample.shape
    return make(channels, height, width, classes)


def _own(name: str, given: object, classes: int) -> nn.Module:
    make = imported("model", given) if isinstance(given, str) else given
    if isinstance(make, nn.Module):
        raise ValueError(f"model: got a {type(make).__name__} itself; give it to run, as model=..., or what makes one")
    if not callable(make):
        raise ValueError(f"model {name!r} is not callable but {type(make).__name__}")
    signature = inspect.signature(make)
    given_to = {"classes": classes} if "classes" in signature.parameters else {}
    try:
        signature.bind(**given_to)
    except TypeError as error:
        raise ValueError(f"model {name!r} is called with classes or with nothing: {error}") from error
    model = make(**given_to)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} returned {type(model).__name__}; it must return a torch.nn.Module")
    return model


def _refuse_misfit(
    name: str, model: nn.Module, batch: Tree, classes: int, misfit: Callable[[Any], str | None] | None
) -> None:
    """Run one small batch, in evaluation mode so that no statistic changes."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = forward(model, batch)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        shapes = " and ".join(str(list(part.shape[1:])) for part in leaves(batch))
        if any(part.dtype == torch.int64 for part in leaves(batch)):
            reason += "; whole numbers [samples, length] are tokens; if they are features, give x.astype('float32')"
        raise ValueError(f"model {name!r} does not take samples {shapes}: {reason}") from error
    model.train(training)
    if misfit is not None:
        if (wrong := misfit(logits)) is not None:
            raise ValueError(f"model {name!r} {wrong}")
        return
    expected = (len(batch), classes)
    if not isinstance(logits, torch.Tensor) or logits.shape != expected:
        got = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ValueError(f"model {name!r} returns {got} for a batch; it must return logits {list(expected)}")
