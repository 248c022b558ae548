"""Models by name."""

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedraa.components.calls import one_line
from fedraa.components.imports import imported
from fedraa.components.text import path_of
from fedraa.data.tree import Tree, leaves, mapped
from fedraa.errors import closest, short_text, without_effect
from fedraa.models.cnn import cnn, emnist_cnn, wide_cnn
from fedraa.models.fasttext import FastText
from fedraa.models.forward import forward
from fedraa.models.mlp import mlp
from fedraa.models.resnet import preact_resnet18, resnet18, resnet18_bn, resnet18_scaler
from fedraa.models.statistics import kept_buffers
from fedraa.models.vit import vit, vit_small
from fedraa.models.wrappers import unwrap_module

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
_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".onnx")
_LONGEST_REASON = 150


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
        if isinstance(given, str) and ":" not in name and name not in MODELS:
            raise ValueError(_unknown(name))
        if not isinstance(sample, torch.Tensor) and name in MODELS:
            raise ValueError(f"model {name!r} takes one input, and samples have {len(leaves(sample))}; give your own")
        if name == "mlp":
            model = _mlp(sample, classes, hidden, dropout)
        elif hidden != _HIDDEN:
            raise without_effect("hidden", hidden, f"model {name}", "give --model mlp, or leave it out")
        elif dropout != 0.0:
            raise without_effect("dropout", dropout, f"model {name}", "give --model mlp, or leave it out")
        elif not isinstance(given, str) or ":" in name:
            model = _own(name, given, classes)
        elif name in _IMAGE_MODELS:
            model = _image_model(name, sample, classes)
        else:
            model = FastText(classes)
        pair = mapped(lambda part: part[:2], sample)
        refuse_misfit(f"model {name!r}", model, pair, misfit or _no_logits(pair, classes))
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
        raise ValueError(f"model: got {short_text(make)}; {_advice(make)}")
    arguments = _arguments(name, make, classes)
    try:
        model = make(**arguments)
    except Exception as error:  # whatever its code raises
        raise ValueError(f"model {name!r} failed with {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} returned {short_text(model)}; it must return a torch.nn.Module")
    return unwrap_module(model)


def _arguments(name: str, make: Callable[..., Any], classes: int) -> dict[str, int]:
    """Return the arguments for a function or a class that makes a model; ValueError if it takes others."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # of some code in C
        return {}
    arguments = {"classes": classes} if "classes" in signature.parameters else {}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"model {name!r} is called with classes or with nothing: {error}; give a finished module, or a function "
            "without other arguments"
        ) from error
    return arguments


def _advice(given: object) -> str:
    """Return what to give instead of an object that is no model and makes none."""
    if isinstance(given, list | tuple) and given and all(isinstance(layer, nn.Module) for layer in given):
        return "give nn.Sequential(*layers)"
    if isinstance(given, Mapping) and any(isinstance(value, torch.Tensor) for value in given.values()):
        return "a state dict has values only: give the module that has loaded it with load_state_dict"
    if isinstance(given, Path):
        return "make the module, load the file with load_state_dict, and give the module"
    return "give an nn.Module, or a function or a class that makes one"


def _unknown(name: str) -> str:
    """Return the sentence for a name that is no model's."""
    known = f"it must be one of {', '.join(MODELS)}, or package.module:callable"
    if Path(name).suffix in _FILES:
        return f"model is {name!r}; a file has values only: give the module that has loaded it with load_state_dict"
    close = closest(name, MODELS, cutoff=0.72)
    hint = f"did you mean {close}? " if close else ""
    return f"model is {name!r}; {hint}{known}; in Python also an nn.Module, of any library"


def refuse_misfit(
    said: str,
    model: nn.Module,
    batch: Tree,
    misfit: Callable[[Any], str | None],
    run: Callable[[nn.Module, Tree], Any] = forward,
) -> None:
    """Run one small batch, in evaluation mode so that no statistic changes; ValueError if that goes wrong.

    Args:
        said: names the model in sentences.
        model: the model, whose modes are as before afterwards.
        batch: the samples, which are not changed.
        misfit: says what is wrong with the result; None if nothing is.
        run: takes the model and the batch.
    """
    modes = [(part, part.training) for part in model.modules()]
    shapes = " and ".join(str(list(part.shape[1:])) for part in leaves(batch))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), kept_buffers(model):
            result = run(model.eval(), mapped(lambda part: part.clone(), batch))
    except Exception as error:  # whatever its code raises
        reason = one_line(error)[:_LONGEST_REASON] or type(error).__name__
        remedy = _remedy(error)
        if any(part.dtype == torch.int64 for part in leaves(batch)):
            remedy += "; whole numbers [samples, length] are tokens, and features are x.astype('float32')"
        raise ValueError(f"{said} does not take samples {shapes}: {reason}; {remedy}") from error
    finally:
        for part, training in modes:
            part.training = training
    if (wrong := misfit(result)) is not None:
        raise ValueError(f"{said} {wrong}")


def _remedy(error: Exception) -> str:
    """Return what to do about an error of a forward pass."""
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        return "name the inputs of the data set like the arguments of its forward"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        return "give the data set one input for each argument of its forward, in a tuple or a dict"
    return "make its first layers fit, or the samples"


def _no_logits(batch: Tree, classes: int) -> Callable[[Any], str | None]:
    """Return what refuses anything but logits."""

    def wrong(result: Any) -> str | None:
        expected = [len(leaves(batch)[0]), classes]
        if isinstance(result, torch.Tensor) and list(result.shape) == expected:
            return None
        got = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        return f"returns {got} for a batch; it must return logits {expected}"

    return wrong
