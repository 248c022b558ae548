"""Creation of models from names, import paths or functions, with checks."""

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedraa.components.calls import convert_errors
from fedraa.components.imports import import_object
from fedraa.components.text import import_path_of
from fedraa.data.tree import Tree, list_leaves, map_tree
from fedraa.errors import InputError, no_effect_error, one_line, suggest_closest
from fedraa.models.cnn import cnn, emnist_cnn, wide_cnn
from fedraa.models.exits import early_exits
from fedraa.models.fasttext import FastText
from fedraa.models.forward import forward
from fedraa.models.mlp import mlp
from fedraa.models.resnet import ENDS_OF_STAGES, preact_resnet18, resnet18, resnet18_bn, resnet18_scaler
from fedraa.models.statistics import kept_buffers
from fedraa.models.vit import vit, vit_small
from fedraa.models.wrappers import unwrap_module

# For each model: a function of (channels, height, width, classes) that creates the model, and the smallest side of an
# image in pixels. A batch norm needs more than one pixel in the last stage to normalise a single sample.
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

MODELS: tuple[str, ...] = ("mlp", *_IMAGE_MODELS, "fasttext", "mlp-exits", "resnet18-exits")

MODULE = "an nn.Module, or a function or a class that makes one"

_HIDDEN = (200,)
_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".onnx")
_LONGEST_REASON = 150


def build_model(
    source: object,
    sample: Tree,
    classes: int,
    *,
    hidden: tuple[int, ...] = _HIDDEN,
    dropout: float = 0.0,
    seed: int = 0,
    misfit: Callable[[Any], str | None] | None = None,
) -> nn.Module:
    """Return an initialised model that maps a batch `[b, ...]` to logits `[b, classes]`.

    The same seed gives the same weights, bit for bit. Torch's global generator does not change.

    Args:
        source: One of `MODELS`, `package.module:callable`, or a function or class. A function or class must return an
            `nn.Module`. It is called with `classes=classes` if it has this parameter, and without arguments otherwise.
        sample: A batch of samples.
        classes: The number of outputs.
        hidden: Widths of the hidden layers of the mlp.
        dropout: Dropout of the mlp.
        seed: Seed of the weights.
        misfit: Returns the problem of the model's result for two samples, as the end of a sentence, or None. By default
            the result must be logits.

    Raises:
        InputError: The name is unknown, the model cannot be created, or it does not accept `sample`.
    """
    name = source if isinstance(source, str) else import_path_of(source)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(source, str) and ":" not in name and name not in MODELS:
            raise _unknown_name_error(name)
        if not isinstance(sample, torch.Tensor) and name in MODELS:
            problem = f"it takes one input, but a sample has {len(list_leaves(sample))} inputs"
            raise InputError(f"model {name!r}", problem, hint="use a custom model")
        model: nn.Module
        if name == "mlp":
            model = _build_mlp(sample, classes, hidden, dropout)
        elif name == "mlp-exits":
            layers = _build_mlp(sample, classes, hidden, dropout)
            # The first module flattens the samples, the last gives the logits. Each hidden layer has `count` modules.
            count = (len(layers) - 2) // max(1, len(hidden))
            model = early_exits(layers, sample, [1 + count * number for number in range(1, len(hidden))])
        elif hidden != _HIDDEN:
            raise no_effect_error("hidden", hidden, f"model {name}", "use --model mlp, or leave it out")
        elif dropout != 0.0:
            raise no_effect_error("dropout", dropout, f"model {name}", "use --model mlp, or leave it out")
        elif not isinstance(source, str) or ":" in name:
            model = _build_custom(name, source, classes)
        elif name in _IMAGE_MODELS:
            model = _build_image_model(name, sample, classes)
        elif name == "resnet18-exits":
            stages = _build_image_model("resnet18", sample, classes)
            assert isinstance(stages, nn.Sequential)
            model = early_exits(stages, sample, ENDS_OF_STAGES)
        else:
            model = FastText(classes)
        pair = map_tree(lambda part: part[:2], sample)
        refuse_misfit(f"model {name!r}", model, pair, misfit or _check_for_logits(pair, classes))
    return model


def _build_mlp(sample: torch.Tensor, classes: int, hidden: tuple[int, ...], dropout: float) -> nn.Sequential:
    if any(width < 1 for width in hidden):
        raise InputError("hidden", got=hidden, expected="widths of 1 or more")
    if not 0 <= dropout < 1:
        raise InputError("dropout", got=dropout, expected="a number from 0 to less than 1")
    return mlp(math.prod(sample.shape[1:]), classes, hidden, dropout)


def _build_image_model(name: str, sample: torch.Tensor, classes: int) -> nn.Module:
    """Return a built-in model for images [b, channels, height, width]."""
    make, smallest = _IMAGE_MODELS[name]
    if sample.ndim != 4 or min(sample.shape[2:]) < smallest:
        problem = f"the samples have the shape {list(sample.shape[1:])}"
        expected = f"images [channels, height, width] with sides of at least {smallest}"
        raise InputError(f"model {name!r}", problem, expected=expected)
    _, channels, height, width = sample.shape
    return make(channels, height, width, classes)


def _build_custom(name: str, source: object, classes: int) -> nn.Module:
    """Return the model that the user's function or class makes.

    Args:
        name: The name of the model for errors.
        source: The function or class, or its import path.
        classes: The number of outputs.
    """
    make = source
    if isinstance(source, str):
        make = import_object("model", source)
    if isinstance(make, nn.Module):
        hint = "pass the module to run, as model=..."
        raise InputError("model", got=make, expected="a function or a class that makes a module", hint=hint)
    if not callable(make):
        raise InputError("model", got=make, expected=MODULE, hint=_hint_for_object(make))
    arguments = _find_arguments(name, make, classes)
    with convert_errors(f"model {name!r}", make):
        model = make(**arguments)
    if not isinstance(model, nn.Module):
        raise InputError(f"model {name!r}", got=model, expected="a torch.nn.Module as its result")
    return unwrap_module(model)


def _find_arguments(name: str, make: Callable[..., Any], classes: int) -> dict[str, int]:
    """Return the arguments for a function or class that makes a model.

    Args:
        name: The name of the model for errors.
        make: The function or class.
        classes: The number of classes, which is passed if `make` has the parameter `classes`.

    Raises:
        InputError: `make` requires other arguments.
    """
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        # Some C functions have no signature.
        return {}
    arguments = {"classes": classes} if "classes" in signature.parameters else {}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        problem = f"fedraa can call it only with the argument classes or without arguments: {error}"
        hint = "pass a module, or a function without other arguments"
        raise InputError(f"model {name!r}", problem, hint=hint) from error
    return arguments


def _hint_for_object(source: object) -> str:
    """Return the hint of an error for an object that is neither a model nor callable, such as a list of layers."""
    if isinstance(source, list | tuple) and source and all(isinstance(layer, nn.Module) for layer in source):
        return "pass nn.Sequential(*layers)"
    if isinstance(source, Mapping) and any(isinstance(value, torch.Tensor) for value in source.values()):
        return "load the state dict into the module with load_state_dict, and pass the module"
    if isinstance(source, Path):
        return "make the module, load the file with load_state_dict, and pass the module"
    return ""


def _unknown_name_error(name: str) -> InputError:
    if Path(name).suffix in _FILES:
        hint = "load the file into the module with load_state_dict, and pass the module"
        return InputError("model", got=name, expected=MODULE, hint=hint)
    expected = f"one of {', '.join(MODELS)}, package.module:callable, or in Python an nn.Module of any library"
    return InputError("model", got=name, expected=expected, hint=suggest_closest(name, MODELS))


def refuse_misfit(
    field: str,
    model: nn.Module,
    batch: Tree,
    misfit: Callable[[Any], str | None],
    run: Callable[[nn.Module, Tree], Any] = forward,
) -> None:
    """Raise InputError if the model fails on a small batch or returns a wrong result.

    Args:
        field: The field of the error.
        model: The model. It runs in evaluation mode; its modes and buffers are restored.
        batch: The samples, which are not changed.
        misfit: Returns the problem of the model's result, as the end of a sentence, or None.
        run: Runs the model on the batch.
    """
    modes = [(part, part.training) for part in model.modules()]
    shapes = " and ".join(str(list(part.shape[1:])) for part in list_leaves(batch))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), kept_buffers(model):
            result = run(model.eval(), map_tree(lambda part: part.clone(), batch))
    # A user-defined model may raise any exception.
    except Exception as error:
        reason = one_line(error)[:_LONGEST_REASON] or type(error).__name__
        hint = _hint_for_error(error, any(part.dtype == torch.int64 for part in list_leaves(batch)))
        raise InputError(field, f"it does not take samples {shapes}: {reason}", hint=hint) from error
    finally:
        for part, training in modes:
            part.training = training
    problem = misfit(result)
    if problem is not None:
        raise InputError(field, f"it {problem}")


def _hint_for_error(error: Exception, has_tokens: bool) -> str:
    """Return the hint of an error of a model's forward. `has_tokens` is True if an input has int64 values."""
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        return "name the inputs of the data set like the arguments of the model's forward"
    if isinstance(error, TypeError) and "positional argument" in str(error):
        return "use one input of the data set for each argument of the model's forward, in a tuple or a dict"
    if isinstance(error, IndexError) and has_tokens and "out of range in self" in str(error):
        return (
            "expected tokens below the num_embeddings of the model's embedding; make it larger, or renumber the tokens"
        )
    if "argument #1 'indices'" in str(error):
        return "an embedding takes integers; pass tokens as x.astype('int64')"
    if "must have the same dtype" in str(error) and not has_tokens:
        return "make all parameters of the model float32, for example with model.float()"
    hint = "change the first layers of the model, or the shape of the samples"
    if has_tokens:
        hint += "; integers [samples, length] count as tokens, so convert features with x.astype('float32')"
    return hint


def _check_for_logits(batch: Tree, classes: int) -> Callable[[Any], str | None]:
    """Return a check of a model's result for this batch.

    The check returns None for logits [b, classes], and otherwise the problem as text.
    """
    expected = [len(list_leaves(batch)[0]), classes]

    def describe_wrong(result: Any) -> str | None:
        got = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        if got == expected:
            return None
        return f"returns {got} for a batch; expected logits {expected}"

    return describe_wrong
