"""Warnings, one sentence each, about runs that work but probably have a mistake in their settings."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.data.federated import Federated
from fedraa.data.tree import Array, Tree, list_leaves, map_tree
from fedraa.devices.fleet import Fleet
from fedraa.errors import RunWarning
from fedraa.models.statistics import kept_buffers
from fedraa.numbers import format_count
from fedraa.objectives import Objective
from fedraa.objectives.builtin import Classification, MultiLabel, NextToken, Regression, Segmentation
from fedraa.rundir.summary import NO_STEP

LARGEST_INPUT = 50.0
"""At usual learning rates, inputs with larger absolute values often end training in NaN."""
CHANNELS = (1, 3, 4)
"""The numbers of channels of grey images, of colour images and of colour images with transparency."""
FASTEST_RELATIVE_SPEED = 1e6
SLOWEST_FLOPS = 1e5
NO_TOKEN = 10**6
"""Tokens minus this number are negative, so that no model can use them as indices."""
SLOWEST_LINK = 10.0
"""Bytes per second. Even slow radio links of sensors are faster."""
UPDATES_IN_BUFFER = 1000
"""Updates of each client in a buffer. A server that waits for more hardly ever takes a step."""
TRIED_ROWS = 4
MAX_CLASSES = 5
RANDOM_INPUT_SIZES = (30.0, 1000.0)
"""Scales of random inputs that test whether a model returns logits.

For inputs of this size, only bounded outputs, such as probabilities, stay between 0 and 1.
"""

# Objectives that take logits, with the output dimension along which probabilities sum to 1 (None: no such dimension).
_CLASS_DIMENSION = {Classification: 1, Segmentation: 1, NextToken: -1, MultiLabel: None}


def issue_warnings(sentences: Iterable[str | None]) -> None:
    """Issue a RunWarning for each sentence."""
    for sentence in sentences:
        if sentence is not None:
            warnings.warn(sentence, RunWarning, stacklevel=2)


def find_large_inputs(data: Federated, *, standardise: bool) -> str | None:
    """Return a warning if the absolute value of an input exceeds `LARGEST_INPUT`.

    If the samples come from a data source, only a few of them are checked.
    """
    for split, tree in (("x_train", data.dataset.x_train), ("x_test", data.dataset.x_test)):
        for name, x in _named_arrays(tree, split):
            if x.dtype.kind != "f" or not x.size:
                continue
            largest, channel = _largest_input(x)
            if largest > LARGEST_INPUT:
                problem = _describe_large_input(name, largest, channel, data, standardise=standardise)
                return f"dataset {data.dataset.name!r}: {problem}"
    return None


def _describe_large_input(name: str, largest: float, channel: int, data: Federated, *, standardise: bool) -> str:
    if any(scaling is not None for scaling in list_leaves(data.scaling)):
        return (
            f"{name} reaches {largest:.4g} standard deviations in channel {channel}, which often ends training in NaN; "
            "look for outliers, or for a channel that is nearly constant"
        )
    remedy = "scale them" if standardise else "leave standardise on, or scale them"
    return f"{name} reaches {largest:.4g}, and values beyond ±{LARGEST_INPUT:g} often end training in NaN; {remedy}"


def _largest_input(x: Array) -> tuple[float, int]:
    """Return the largest finite absolute value in the inputs, and the channel of this value."""
    axes = (0, *range(2, x.ndim))
    extremes = np.maximum(np.fmax.reduce(x, axis=axes), -np.fmin.reduce(x, axis=axes))
    extremes = np.atleast_1d(np.where(np.isfinite(extremes), extremes, 0.0))
    channel = int(extremes.argmax())
    return float(extremes[channel]), channel


def _named_arrays(tree: Tree, name: str) -> Iterator[tuple[str, Array]]:
    """Yield each array of a tree with its name, such as x_train['image']."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from _named_arrays(part, f"{name}[{key!r}]")
    elif isinstance(tree, tuple):
        for position, part in enumerate(tree):
            yield from _named_arrays(part, f"{name}[{position}]")
    else:
        yield name, tree


def find_last_channels(data: Federated) -> str | None:
    """Return a warning if the samples look like images whose last dimension is the channels.

    Grey images count only if they are square, because series [sensors, times, 1] also end in one channel.
    """
    for name, x in _named_arrays(data.dataset.x_train, "x_train"):
        if x.ndim != 4 or x.shape[3] not in CHANNELS:
            continue
        height, width, channels = x.shape[1:]
        if min(height, width) > max(CHANNELS) and (channels > 1 or height == width):
            return (
                f"dataset {data.dataset.name!r}: {name} has samples of shape {list(x.shape[1:])}, like images with the "
                "channels last; images are [channels, height, width], so pass x.transpose(0, 3, 1, 2) unless this is "
                "intended"
            )
    return None


def find_integer_features(data: Federated, model: nn.Module, example: Tree, objective: Objective) -> str | None:
    """Return a warning if inputs of integers, which are not scaled, seem to be features instead of tokens.

    They count as tokens if the model has an embedding, or if it fails for very negative numbers, because it uses them
    as indices.

    Args:
        data: The clients' data.
        model: The model.
        example: A batch of samples.
        objective: The objective of the run.
    """
    if any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in model.modules()):
        return None
    for name, x in _named_arrays(data.dataset.x_train, "x_train"):
        if x.ndim != 2 or x.dtype != np.int64:
            continue
        shifted = map_tree(lambda part: part - NO_TOKEN if part.dtype == torch.int64 else part, example)
        if not _trial_outputs(model, shifted, objective, factors=()):
            return None
        return (
            f"dataset {data.dataset.name!r}: {name} has integers, which count as tokens and are not scaled, but "
            f"{type(model).__name__} has no embedding; if they are features, pass x.astype('float32')"
        )
    return None


def find_wrong_units(fleet: Fleet) -> str | None:
    """Return a warning if the speeds of devices or links seem to be in other units than the fleet's."""
    speed = float(fleet.compute.min())
    if fleet.relative:
        if speed < FASTEST_RELATIVE_SPEED:
            return None
        return (
            f"compute: the slowest device has speed {speed:.3g}, and a device of speed 1 trains the full model for 5 "
            "epochs in time 1; if the speeds are in FLOP/s, also give --units physical"
        )
    if speed < SLOWEST_FLOPS:
        return f"compute: a device has {speed:.3g} FLOP/s; with --units physical, write 3e10 for 30 GFLOP/s"
    rate = float(min(fleet.downlink.min(), fleet.uplink.min()))
    if rate < SLOWEST_LINK:
        field = "links" if fleet.links else "compute"
        return f"{field}: a device has a link of {rate:.3g} bytes/s; with --units physical, write 1e6 for 1 MB/s"
    return None


def find_large_buffer(size: int, clients: int) -> str | None:
    """Return a warning if a step of the server waits for more than `UPDATES_IN_BUFFER` updates of each client.

    Args:
        size: The number of client updates that the server collects before a step.
        clients: The number of clients.
    """
    if size <= UPDATES_IN_BUFFER * clients:
        return None
    return (
        f"buffer_size: got {size}, and each step of the server waits for this number of updates; with "
        f"{format_count(clients, 'client')} the run may never take a step, so give a smaller buffer"
    )


def find_unused_labels(data: Federated) -> str | None:
    """Return a warning if training samples have only one label, or if labels below the largest one are not used.

    If the smallest label is not 0, the labels probably start at 1.
    """
    if data.labels is None or not data.labels.size:
        return None
    first = int(data.labels.min())
    last = int(data.labels.max())
    if first == last:
        return (
            f"dataset {data.dataset.name!r}: all training samples have the label {first}, so the model learns no "
            "difference between classes, and its accuracy means nothing; check the labels"
        )
    if first == 0:
        used = np.union1d(data.labels, data.dataset.y_test)
        unused = np.setdiff1d(np.arange(last), used)
        if not unused.size:
            return None
        names = ", ".join([*map(str, unused[:MAX_CLASSES]), "..."][: unused.size])
        return (
            f"dataset {data.dataset.name!r}: no sample has the label {names}, so the model has outputs without use; "
            "number the classes without gaps unless this is intended"
        )
    missing = "class 0 has" if first == 1 else f"classes 0..{first - 1} have"
    return (
        f"dataset {data.dataset.name!r}: labels {first}..{last}: {missing} no training sample; labels count from 0, so "
        f"subtract {first} unless this is intended"
    )


def find_no_logits(model: nn.Module, example: Tree, objective: Objective) -> str | None:
    """Return a warning if the objective takes logits, but the model seems to end in a softmax, a sigmoid or a ReLU.

    Outputs between 0 and 1 count as probabilities if they sum to 1, or if they stay between 0 and 1 for large random
    inputs. Outputs that are never negative count as those of a ReLU if some are 0 and others are over 1.

    Args:
        model: The model.
        example: A batch of samples.
        objective: The objective of the run.
    """
    if type(objective) not in _CLASS_DIMENSION:
        return None
    dimension = _CLASS_DIMENSION[type(objective)]
    is_token = any(not x.is_floating_point() for x in list_leaves(example))
    outputs = _trial_outputs(model, example, objective, factors=() if is_token else RANDOM_INPUT_SIZES)
    if not outputs or not all(bool((result >= 0).all()) for result in outputs):
        return None
    if any(bool((result > 1).any()) for result in outputs):
        if not any(bool((result == 0).any()) for result in outputs):
            return None
        return (
            f"model: {type(model).__name__} returns no negative value, like a ReLU, but the loss of {objective.name} "
            "takes logits; leave out the last activation, because with it training is slow or stops"
        )
    sums_to_one = dimension is not None and all(_sums_to_one(result, dimension) for result in outputs)
    if not sums_to_one and (is_token or all(bool((result == outputs[0][0]).all()) for result in outputs)):
        return None
    layer = "softmax" if sums_to_one else "sigmoid"
    return (
        f"model: {type(model).__name__} returns probabilities, like a {layer}, but the loss of {objective.name} takes "
        f"logits; leave out the last {layer}, because with it training is slow and the loss is wrong"
    )


def find_added_outputs(fragments: int, objective: Objective, *, scaled: bool) -> str | None:
    """Return a warning if the model predicts numbers and its fragments train without scaled activations.

    Each fragment learns the whole target. The full model adds the outputs of all fragments, so it predicts too large
    numbers.

    Args:
        fragments: The number of fragments.
        objective: The objective of the run.
        scaled: True if training divides a fragment's activations by the fraction of the units that the fragment has.
    """
    if fragments < 2 or scaled or type(objective) is not Regression:
        return None
    return (
        f"fragments: each of the {fragments} learns to predict the whole target, and the full model adds their "
        "outputs, so that its predictions are too large; give --override local.scale_activations=True, or a method "
        "that trains the whole model"
    )


def find_stacked_convolutions(model: nn.Module, stack: int, device: str) -> str | None:
    """Return a warning if a GPU trains convolutions of several tasks as one batched computation.

    On an H200, the bits of a task's update depended on the other tasks of the batched computation.

    Args:
        model: The model.
        stack: The number of tasks that are trained together.
        device: The device of the run: `auto`, `cpu` or `cuda`.
    """
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    if stack == 1 or not on_gpu or not any(isinstance(part, convolutions) for part in model.modules()):
        return None
    return (
        f"vmap_batch: got {stack}; on a GPU, the rounding of convolutions depends on the tasks that are trained "
        "together, so runs with another number of workers and resumed runs can have other bits; set it to 1 for equal "
        "bits"
    )


def _sums_to_one(outputs: Tensor, dimension: int) -> bool:
    sums = outputs.double().sum(dimension)
    return outputs.shape[dimension] > 1 and bool(((sums - 1).abs() < 1e-3).all())


def _trial_outputs(
    model: nn.Module, example: Tree, objective: Objective, *, factors: tuple[float, ...]
) -> list[Tensor]:
    """Return the model's outputs for samples, and for random inputs with each standard deviation in `factors`.

    The list is empty if the model fails or an output is not a floating-point tensor.
    """
    samples = map_tree(lambda x: x[:TRIED_ROWS], example)
    generator = torch.Generator().manual_seed(0)
    trials = [samples]
    for factor in factors:
        trials.append(map_tree(partial(_draw_like, factor=factor, generator=generator), samples))
    modes = [(part, part.training) for part in model.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), kept_buffers(model):
            outputs = [objective.outputs(objective.forward(model.eval(), inputs)) for inputs in trials]
    # A user's model may refuse random inputs with any exception.
    except Exception:
        return []
    finally:
        for part, training in modes:
            part.training = training
    if not all(isinstance(result, Tensor) and result.is_floating_point() for result in outputs):
        return []
    return outputs


def _draw_like(x: Tensor, *, factor: float, generator: torch.Generator) -> Tensor:
    return factor * torch.randn(x.shape, generator=generator)


def find_no_step(summary: Mapping[str, Any]) -> str | None:
    """Return a warning if a run made no step, or if no update arrived before its round closed."""
    if summary["steps"]:
        if summary["tasks"]:
            return None
        lost = summary.get("lost", 0)
        if not lost:
            return "no client took part in any round, so the metrics are those of the untrained model"
        problem = f"no update arrived in time: {format_count(lost, 'task')} of clients were lost"
        return f"{problem}, so the metrics are those of the untrained model; give a longer deadline"
    meets_target = ", which meets the target already; set a harder target"
    remedies = {"time": "; give it more time", "accuracy": meets_target, "target": meets_target}
    remedy = remedies.get(summary["reason"], "")
    received = ""
    if summary["tasks"]:
        received = f" after {format_count(summary['tasks'], 'update')}, which did not complete a step of the server"
    return (
        f"{NO_STEP}: the run ended by {summary['reason']} at time {summary['time']:.4g}{received}, so its metrics are "
        f"those of the untrained model{remedy}"
    )
