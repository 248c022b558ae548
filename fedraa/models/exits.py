"""Models with a classifier after each block (early exits)."""

import itertools
from collections.abc import Sequence
from numbers import Integral

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.arguments import as_tuple
from fedraa.errors import InputError

_MODULES = "a list of modules"
_NUMBERS = "a list of numbers of layers"


class EarlyExits(nn.Module):
    """A sequence of blocks with a classifier after each block.

    In training, the first `depth` blocks run and return the logits [b, classes] of their classifiers, the deepest
    first. In evaluation, the mean of all classifiers' logits is returned.

    Args:
        blocks: The blocks. Each takes the result of the block before it.
        exits: The classifier of each block.

    Raises:
        InputError: `blocks` or `exits` are no modules, or their numbers differ.
    """

    def __init__(self, blocks: Sequence[nn.Module], exits: Sequence[nn.Module]) -> None:
        super().__init__()
        for name, modules in (("blocks", blocks), ("exits", exits)):
            if not all(isinstance(module, nn.Module) for module in as_tuple(name, modules, _MODULES)):
                raise InputError(name, got=modules, expected=_MODULES)
        if not 0 < len(blocks) == len(exits):
            raise InputError("exits", got=len(exits), expected=f"one for each of {len(blocks)} blocks")
        self.blocks = nn.ModuleList(blocks)
        self.exits = nn.ModuleList(exits)
        self.depth = len(blocks)
        """The number of blocks that run in training."""

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        depth = self.depth if self.training else len(self.blocks)
        outputs: list[Tensor] = []
        for block, classifier in zip(self.blocks[:depth], self.exits[:depth], strict=True):
            x = block(x)
            outputs.append(classifier(x))
        if self.training:
            return tuple(outputs[::-1])
        return torch.stack(outputs).mean(0)


def limit_depth(model: nn.Module, trained: npt.NDArray[np.bool_] | None) -> None:
    """Limit the training of an EarlyExits model to the blocks up to the last trained parameter of a block or an exit.

    `trained` [k] is True for trained parameters; None means all. A model of another class does not change.
    """
    if not isinstance(model, EarlyExits):
        return
    model.depth = len(model.blocks)
    if trained is None:
        return
    model.depth = 1
    start = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        end = start + parameter.numel()
        if trained[start:end].any():
            model.depth = max(model.depth, block_number(name) + 1)
        start = end


def block_number(name: str) -> int:
    """Return the number of the block, from 0, to which a parameter of an EarlyExits model belongs.

    The parameters of a block's exit also belong to the block.
    """
    return int(name.split(".")[1])


def early_exits(model: nn.Sequential, sample: Tensor, after: Sequence[int]) -> EarlyExits:
    """Return the layers of `model` as blocks, with a new classifier after each block but the last.

    A new classifier averages the pixels of each channel and has one linear layer.

    Args:
        model: A sequence of layers that ends with logits. Its layers become part of the result.
        sample: A batch of samples [b, ...].
        after: The numbers of layers after which a classifier is added, ascending, such as (5, 7, 9).

    Raises:
        InputError: An argument has the wrong type, or `after` is not ascending.
    """
    if not isinstance(model, nn.Sequential):
        raise InputError("model", got=model, expected="a torch.nn.Sequential")
    if not isinstance(sample, Tensor):
        raise InputError("sample", got=sample, expected="a tensor with a batch of samples")
    after = as_tuple("after", after, _NUMBERS, int)
    if not all(isinstance(layer, Integral) for layer in after):
        raise InputError("after", got=after, expected=_NUMBERS)
    ends = [*after, len(model)]
    if any(start >= end for start, end in itertools.pairwise([0, *ends])):
        raise InputError("after", got=tuple(after), expected=f"ascending numbers from 1 to {len(model) - 1}")
    blocks = [model[start:end] for start, end in itertools.pairwise([0, *ends])]
    training = model.training
    model.eval()
    with torch.no_grad():
        outputs = list(itertools.accumulate(blocks, lambda x, block: block(x), initial=sample))[1:]
    model.train(training)
    classes = outputs[-1].shape[1]
    exits: list[nn.Module] = []
    for output in outputs[:-1]:
        if output.ndim == 4:
            exits.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(output.shape[1], classes)))
        else:
            exits.append(nn.Sequential(nn.Flatten(), nn.Linear(output[0].numel(), classes)))
    return EarlyExits(blocks, [*exits, nn.Identity()])
