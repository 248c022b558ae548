"""From a model to the parts of it that a method trains."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fedraa.composition.method import Method
from fedraa.composition.registry import methods
from fedraa.data.tree import Tree
from fedraa.errors import Uncuttable
from fedraa.models.build import refuse_misfit
from fedraa.models.wrappers import unwrap_module
from fedraa.objectives import Objective
from fedraa.submodels import Traced
from fedraa.submodels.policies.slices import Full
from fedraa.submodels.tracing.accept import check_kinds
from fedraa.submodels.tracing.remembered import trace_once
from fedraa.submodels.tracing.trace import copied
from fedraa.submodels.whole import check_updates, take_whole

NAMED_METHODS = 3  # of either kind of schedule, in a sentence


def own_model(module: nn.Module, batch: Tree, misfit: Callable[[Any], str | None], objective: Objective) -> nn.Module:
    """Return a copy of the user's module, without wrappers; ValueError if it does not fit the batch."""
    with _naming_the_model():
        check_kinds(module)
        module = copied(unwrap_module(module))
    refuse_misfit(f"model: {type(module).__name__}", module, batch, misfit, objective.forward)
    return module


def trace_model(method: Method, model: nn.Module, pair: Tree, tell: Callable[[str], None] | None = None) -> Traced:
    """Return the model with its width groups if the method cuts it, else without.

    Args:
        method: the method that trains the model.
        model: the model, without wrappers.
        pair: two samples.
        tell: gets a line if it takes long.

    Raises:
        Uncuttable: the method cuts models, and this one can only be trained whole.
        ValueError: nothing can train the model.
    """
    with _naming_the_model():
        if not method.cuts:
            return take_whole(model, pair)
        try:
            return check_updates(trace_once(model, pair, tell), pair)
        except ValueError as error:
            if str(error).startswith("tracing_rules: "):
                raise
            take_whole(model, pair)
            raise Uncuttable(f"{error}, and {method.name} cuts models") from error


@contextmanager
def naming_whole_methods(method: Method) -> Iterator[None]:
    """Within, a model that the method cannot cut is a ValueError that names methods which take it."""
    try:
        yield
    except Uncuttable as error:
        alike = [name for name, each in methods().items() if isinstance(each.submodel, Full) and not each.cuts]
        names = [name for name in alike if methods()[name].asynchronous == method.asynchronous][:NAMED_METHODS]
        names += [name for name in alike if methods()[name].asynchronous != method.asynchronous][:NAMED_METHODS]
        raise ValueError(
            f"{error}; methods that train the whole model accept it: {', '.join(names)}, ... (see `fedraa methods`)"
        ) from error


@contextmanager
def _naming_the_model() -> Iterator[None]:
    """Within, a sentence about a module or an example names the field that the user gives, `model`."""
    try:
        yield
    except ValueError as error:
        field, _, text = str(error).partition(": ")
        if field not in ("module", "example"):
            raise
        raise type(error)(f"model: {text}") from error
