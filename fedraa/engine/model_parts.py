"""Preparation of a user's model: remove its wrappers, and trace it if the method cuts units out of models."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedraa.composition.method import Method
from fedraa.composition.registry import list_methods
from fedraa.data.dataset import Dataset
from fedraa.data.tree import Tree, list_leaves, map_tree, take_rows
from fedraa.errors import InputError, Uncuttable
from fedraa.models.build import refuse_misfit
from fedraa.models.wrappers import unwrap_module
from fedraa.objectives import Objective
from fedraa.submodels import Traced
from fedraa.submodels.policies.slices import Fragments, Full
from fedraa.submodels.tracing.accept import check_kinds
from fedraa.submodels.tracing.trace import copy_to_cpu
from fedraa.submodels.tracing.trace_cache import trace_once
from fedraa.submodels.whole import check_updates, take_whole

# Methods that an error message suggests for a model that cannot be cut.
WELL_KNOWN = ("fedavg", "fedprox", "fedbuff", "fedasync")


def own_model(module: nn.Module, batch: Tree, misfit: Callable[[Any], str | None], objective: Objective) -> nn.Module:
    """Return a copy of the user's module, without wrappers.

    Args:
        module: The user's module.
        batch: Samples.
        misfit: A function that returns why outputs do not fit the objective, or None if they fit.
        objective: The objective, which calls the module.

    Raises:
        ValueError: The module does not fit the batch.
    """
    with _naming_the_model():
        check_kinds(module)
        module = copy_to_cpu(unwrap_module(module))
    refuse_misfit(f"model: {type(module).__name__}", module, batch, misfit, objective.forward)
    return module


def refuse_large_tokens(model: nn.Module, dataset: Dataset, objective: Objective) -> None:
    """Run the model on the samples with the largest tokens. Raise InputError if its embedding is too small for them."""
    for name, x in (("x_train", dataset.x_train), ("x_test", dataset.x_test)):
        for tokens in list_leaves(x):
            if tokens.dtype.kind not in "iu" or not tokens.size:
                continue
            row = int(tokens.reshape(len(tokens), -1).max(axis=1).argmax())
            batch = map_tree(torch.from_numpy, take_rows(x, [row, row]))
            field = f"model: {type(model).__name__} with token {tokens[row].max()} in {name}"
            refuse_misfit(field, model, batch, lambda result: None, objective.forward)


def trace_model(
    method: Method,
    model: nn.Module,
    pair: Tree,
    tell: Callable[[str], None] | None,
    cut_layers: Sequence[str] | None,
) -> Traced:
    """Return the model as a Traced. It has width groups (units that can be cut) only if the method cuts models.

    Args:
        method: The method that trains the model.
        model: The model, without wrappers.
        pair: Two samples, with which the model is called.
        tell: Called with a line of text if tracing takes long; None for no call.
        cut_layers: Names or patterns of the layers that are cut; None for all.

    Raises:
        Uncuttable: The method cuts models, but this model can only be trained whole.
        InputError: No method can train the model.
    """
    with _naming_the_model():
        if not method.cuts:
            return take_whole(model, pair)
        try:
            traced = trace_once(model, pair, tell)
            if cut_layers is not None:
                traced = traced.match_groups(cut_layers)
            elif isinstance(method.submodel, Fragments):
                traced = method.submodel.choose_groups(traced)
            return check_updates(traced, pair)
        except InputError as error:
            if error.field.startswith("tracing_rules") or error.field == "cut_layers":
                raise
            take_whole(model, pair)
            raise Uncuttable("model", f"{error.text}, and {method.name} cuts models") from error


@contextmanager
def naming_whole_methods(method: Method) -> Iterator[None]:
    """If the `with` block raises Uncuttable, add a hint on how to train the whole model."""
    try:
        yield
    except Uncuttable as error:
        whole = {
            name: other for name, other in list_methods().items() if isinstance(other.submodel, Full) and not other.cuts
        }
        names = [name for name in WELL_KNOWN if name in whole]
        names.sort(key=lambda name: whole[name].asynchronous != method.asynchronous)
        hint = f"choose a method that trains the whole model, such as {', '.join(names)} (see `fedraa methods`)"
        if isinstance(method.submodel, Fragments):
            hint = f"set fragments to 1, or {hint}"
        raise InputError(error.field, error.text, hint=hint) from error


@contextmanager
def _naming_the_model() -> Iterator[None]:
    """Replace the field `module` or `example` of an error by the user's option `model`."""
    try:
        yield
    except InputError as error:
        if error.field not in ("module", "example"):
            raise
        raise error.with_field("model") from error
