"""The parameters to which element-wise masks apply."""

from itertools import chain

from torch import nn

from fedraa.errors import Uncuttable
from fedraa.submodels.traced import Traced


def find_maskable_names(traced: Traced) -> tuple[str, ...]:
    """Return the names of the parameters inside repeated blocks, or if there are none, of those that width groups cut.

    In SubDisMO's Table 7 exactly the encoder blocks are masked (133,120 parameters of its ViT), never the patch
    embedding, position, class token or head. Raises Uncuttable for a model without repeated blocks and without width
    groups.
    """
    blocks = tuple(f"{name}." for name in _block_names(traced.module))
    if blocks:
        return tuple(name for name in traced.names if name.startswith(blocks))
    entries = chain.from_iterable(group.entries for group in traced.groups)
    cut = {entry.tensor for entry in entries}
    if not cut:
        raise Uncuttable("model", f"nothing of {type(traced.module).__name__} can be masked: {traced.explain_uncut()}")
    return tuple(name for name in traced.names if name in cut)


def _block_names(module: nn.Module) -> list[str]:
    """Return the names of repeated blocks: modules with children, of one class, two or more in one container."""
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
