"""What a user gave a run as an object, which its written configuration does not bring back."""

import inspect
from collections.abc import Mapping
from types import FunctionType

from torch import nn

from fedraa.components import values_of
from fedraa.config.experiment import Experiment
from fedraa.data import Dataset, FederatedDataset

_MARK = "given as an object"


def objects_of(
    experiment: Experiment, model: nn.Module | None, dataset: Dataset | FederatedDataset | None
) -> tuple[str, ...]:
    """Return the fields that were given as objects which the configuration cannot make again.

    These are the model and the dataset, and components that do not keep a value that they were made with.
    """
    names = [name for name, part in (("model", model), ("dataset", dataset)) if part is not None]
    names += [name for name, value in experiment if name not in names and not _is_written_whole(value)]
    return tuple(names)


def with_object_names(
    experiment: Experiment, model: nn.Module | None, dataset: Dataset | FederatedDataset | None
) -> Experiment:
    """Return the experiment with the names of these objects in place of the defaults of their fields."""
    names: dict[str, str] = {}
    if model is not None:
        names["model"] = f"{type(model).__name__} ({_MARK})"
    if dataset is not None:
        name = str(dataset.name).replace(":", " ")  # with a colon it would read as an import path
        names["dataset"] = f"{name} ({_MARK})"
    return experiment.model_copy(update=names)


def _is_written_whole(part: object) -> bool:
    """Return True if `describe` writes down every value that the part was made with."""
    if isinstance(part, tuple | list):
        return all(map(_is_written_whole, part))
    if isinstance(part, Mapping):
        return all(map(_is_written_whole, part.values()))
    if isinstance(part, FunctionType) or inspect.isclass(part) or not hasattr(part, "__dict__"):
        return True
    values = values_of(part)
    if type(part).__init__ is not object.__init__:
        taken = list(inspect.signature(type(part).__init__).parameters)[1:]
        if any(name not in values for name in taken):
            return False
    return all(map(_is_written_whole, values.values()))
