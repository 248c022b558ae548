"""The repeated blocks of a model, such as encoder blocks. Clients can mask or skip them."""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from fedraa.data.tree import Tree
from fedraa.errors import Uncuttable
from fedraa.models.forward import forward
from fedraa.submodels.flat import trainable_parameters
from fedraa.submodels.meter import Meter
from fedraa.submodels.traced import Traced
from fedraa.submodels.tracing.modes import without_fast_path
from fedraa.submodels.tracing.recorder import iterate_tensors


@dataclass(frozen=True)
class RemovableBlock:
    """A block that returns its input unchanged if all of its trainable parameters are 0.

    Attributes:
        name: Name of the block's module.
        place: Indices of the block's parameters in the flat vector.
        work: FLOPs of the block, divided by the FLOPs of the model.
    """

    name: str
    place: slice
    work: float


def find_removable_blocks(traced: Traced, example: Tree) -> list[RemovableBlock]:
    """Return the repeated blocks that a client can skip, such as pre-norm encoder blocks.

    A client can skip a block that returns its input unchanged when all parameters of the block are 0, such as a block
    with a residual connection. A block inside of another such block does not count. A block that shares parameters with
    the rest of the model cannot be skipped.
    """
    names = _find_repeated_modules(traced.module)
    module = traced.make_full_skeleton().eval()
    unchanged: dict[str, bool] = {}
    flops = dict.fromkeys(names, 0)
    with torch.no_grad(), torch.random.fork_rng(), without_fast_path(), Meter() as meter:
        torch.manual_seed(0)
        # Frozen parameters keep their values, because `module` shares these parameters with the traced module.
        for parameter in trainable_parameters(module):
            parameter.normal_()

        def note_start(name: str) -> None:
            flops[name] -= meter.flops

        def note_end(name: str, inputs: object, out: object) -> None:
            flops[name] += meter.flops
            before, after = next(iterate_tensors(inputs), None), next(iterate_tensors(out), None)
            is_same = before is not None and after is not None and torch.equal(before, after)
            unchanged[name] = unchanged.get(name, True) and is_same

        for name in names:
            block = module.get_submodule(name)
            for parameter in trainable_parameters(block):
                parameter.zero_()
            block.register_forward_pre_hook(lambda block, inputs, name=name: note_start(name))
            block.register_forward_hook(
                lambda block, inputs, named, out, name=name: note_end(name, (inputs, named), out), with_kwargs=True
            )
        forward(module, example)
    blocks: list[RemovableBlock] = []
    for name in names:
        place = _find_place(traced, name)
        is_inner = name.startswith(tuple(f"{block.name}." for block in blocks))
        if place is not None and unchanged.get(name, False) and not is_inner:
            blocks.append(RemovableBlock(name, place, flops[name] / meter.flops))
    return blocks


def _find_place(traced: Traced, block: str) -> slice | None:
    """Return the indices of a block's parameters, or None if it has none or shares some with other modules."""
    own = [place for name, place in traced.places.items() if name.startswith(f"{block}.")]
    module = traced.module.get_submodule(block)
    inside = set(module.modules())
    outside = [part for part in traced.module.modules() if part not in inside]
    others = chain.from_iterable(part.parameters(recurse=False) for part in outside)
    if not own or not set(trainable_parameters(module)).isdisjoint(others):
        return None
    return slice(own[0].start, own[-1].stop)


def find_maskable_names(traced: Traced) -> tuple[str, ...]:
    """Return the names of the parameters inside repeated blocks.

    Without repeated blocks, return the names of the parameters that can be cut. SubDisMO masks only the 133,120
    parameters in the encoder blocks of a ViT (Table 7). Raises Uncuttable if the model has neither repeated blocks nor
    width groups.
    """
    blocks = tuple(f"{name}." for name in _find_repeated_modules(traced.module))
    if blocks:
        return tuple(name for name in traced.names if name.startswith(blocks))
    entries = chain.from_iterable(group.entries for group in traced.groups)
    cut = {entry.tensor for entry in entries}
    if not cut:
        raise Uncuttable("model", f"no part of {type(traced.module).__name__} can be masked: {traced.explain_uncut()}")
    return tuple(name for name in traced.names if name in cut)


def _find_repeated_modules(module: nn.Module) -> list[str]:
    """Return the names of modules that contain modules and have a sibling of the same class, such as encoder blocks."""
    names = []
    for name, container in module.named_modules():
        children = list(container.named_children())
        kinds = [type(child) for _, child in children if any(True for _ in child.children())]
        names += [
            f"{name}.{key}".lstrip(".")
            for key, child in children
            if kinds.count(type(child)) > 1 and not isinstance(child, nn.Sequential | nn.ModuleList)
        ]
    return names
