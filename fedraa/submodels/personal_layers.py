"""The choice of the personal layers, which stay at each client."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt
from torch import nn

from fedraa.errors import InputError, suggest_closest
from fedraa.models.statistics import NORMS
from fedraa.submodels.flat import canonical_names, layer_of, trainable_parameters
from fedraa.submodels.traced import Traced

LAST = "last-layer"
ALL_BUT_LAST = "all-but-last-layer"
BATCH_NORM = "batch-norm"


def find_personal(traced: Traced, patterns: Sequence[str]) -> frozenset[str]:
    """Return the names of the personal parameters.

    Args:
        traced: The model.
        patterns: Names of parameters or modules, `fnmatch` patterns, or `last-layer`, `all-but-last-layer` or
            `batch-norm`. The last layer is the module that has the last parameter. A parameter that several layers
            share belongs to each of them.

    Raises:
        InputError: A name or a pattern matches no parameter, or all parameters are personal.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        matched = _match(traced, pattern)
        if not matched and pattern != BATCH_NORM:
            raise _no_match(traced, pattern)
        chosen |= matched
    if patterns and len(chosen) == len(traced.names):
        problem = "every layer would stay at the clients, and the server would receive nothing"
        raise InputError("personal_layers", problem, got=", ".join(patterns), hint="choose fewer layers")
    return frozenset(chosen)


def personal_mask(traced: Traced, chosen: frozenset[str], module: nn.Module) -> npt.NDArray[np.bool_]:
    """Return a mask [k] of the personal parameters of a submodel.

    Args:
        traced: The model.
        chosen: Names of the personal parameters.
        module: A submodel of the model, with k parameters.
    """
    parts = [
        np.full(parameter.numel(), name in chosen)
        for name, parameter in zip(traced.names, trainable_parameters(module), strict=True)
    ]
    return np.concatenate(parts)


def _match(traced: Traced, pattern: str) -> set[str]:
    names = canonical_names(traced.module)
    last = layer_of(list(names)[-1])
    if pattern == LAST:
        return {own for name, own in names.items() if layer_of(name) == last}
    if pattern == ALL_BUT_LAST:
        return set(traced.names) - _match(traced, LAST)
    if pattern == BATCH_NORM:
        norms = {name for name, module in traced.module.named_modules() if isinstance(module, NORMS)}
        return {name for name in traced.names if layer_of(name) in norms}
    return {own for name, own in names.items() if _matches(name, pattern)}


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def _no_match(traced: Traced, pattern: str) -> InputError:
    kind = type(traced.module).__name__
    buffers = [name for name, _ in traced.module.named_buffers() if fnmatchcase(name, pattern)]
    if buffers:
        problem = f"it chooses {buffers[0]}, which is estimated before each evaluation and never sent"
        return InputError("personal_layers", problem, got=pattern, hint="use names of parameters")
    # No trainable parameter matches, so a parameter that matches is frozen.
    every = traced.module.named_parameters(remove_duplicate=False)
    frozen = next((name for name, _ in every if _matches(name, pattern)), None)
    if frozen is not None:
        problem = f"it chooses {frozen}, which is frozen and never sent"
        return InputError("personal_layers", problem, got=pattern, hint="use names of parameters that are trained")
    modules = [name for name, module in traced.module.named_modules() if name and trainable_parameters(module)]
    expected = f"names or patterns of the parameters of {kind}: {', '.join(traced.names[:8])}"
    if len(traced.names) > 8:
        expected += ", ..."
    return InputError(
        "personal_layers",
        got=pattern,
        expected=expected,
        hint=suggest_closest(pattern, [*modules, *traced.names]) or "`head` chooses all parameters of a module `head`",
    )
