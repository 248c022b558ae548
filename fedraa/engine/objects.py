"""Objects that the user passed to a run, such as a module, and that config.json cannot recreate."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

from fedraa.components.calls import convert_errors
from fedraa.components.text import values_of
from fedraa.data import Dataset, FederatedDataset
from fedraa.errors import InputError, short_text

_MARK = "given as an object"


def split_objects(
    model: object, dataset: object, fields: Mapping[str, object]
) -> tuple[nn.Module | None, Any, dict[str, object]]:
    """Return the model object, the dataset object, and the fields.

    If `model` or `dataset` is a name, the returned fields contain this name, and None is returned in place of the
    object. A function that returns a dataset is called.

    Args:
        model: A module, or the name of a model.
        dataset: A dataset, a function that returns one, or a name.
        fields: The other fields.
    """
    fields = dict(fields)
    module = None
    if isinstance(model, nn.Module):
        module = model
    elif model is not None:
        fields["model"] = model
    if isinstance(dataset, str | Path):
        fields["dataset"] = str(dataset)
        dataset = None
    elif callable(dataset) and not isinstance(dataset, Dataset | FederatedDataset):
        dataset = _call_dataset(dataset)
    return module, dataset, fields


def _call_dataset(make: Callable[[], object]) -> Dataset | FederatedDataset:
    """Return the dataset that a function makes. Raise InputError if the function fails or returns no dataset."""
    with convert_errors("dataset", make):
        dataset = make()
    if not isinstance(dataset, Dataset | FederatedDataset):
        raise InputError(
            "dataset",
            f"{short_text(make)} returned another type",
            got=dataset,
            expected="a fedraa.Dataset or a fedraa.FederatedDataset",
        )
    return dataset


def objects_of(
    fields: Mapping[str, object], model: nn.Module | None, dataset: Dataset | FederatedDataset | None
) -> tuple[str, ...]:
    """Return the names of the fields with objects that config.json cannot recreate.

    These are the model, the dataset, and components whose description lacks some of their arguments.

    Args:
        fields: The fields of the experiment.
        model: The model object; None if the user gave a name.
        dataset: The dataset object; None if the user gave a name.
    """
    names = [name for name, part in (("model", model), ("dataset", dataset)) if part is not None]
    names += [name for name, value in fields.items() if name not in names and not _is_written_whole(value)]
    return tuple(names)


def object_names(model: nn.Module | None, dataset: Dataset | FederatedDataset | None) -> dict[str, str]:
    """Return the texts that config.json has for a model object and a dataset object, by the field's name."""
    names: dict[str, str] = {}
    if model is not None:
        names["model"] = f"{type(model).__name__} ({_MARK})"
    if dataset is not None:
        # A colon would make the name an import path.
        name = str(dataset.name).replace(":", " ")
        names["dataset"] = f"{name} ({_MARK})"
    return names


def _is_written_whole(part: object) -> bool:
    """Return True if the description of a component contains all of its arguments."""
    if isinstance(part, tuple | list):
        return all(map(_is_written_whole, part))
    if isinstance(part, Mapping):
        return all(map(_is_written_whole, part.values()))
    if isinstance(part, str | FunctionType) or inspect.isclass(part) or not hasattr(part, "__dict__"):
        return True
    values = values_of(part)
    if type(part).__init__ is not object.__init__:
        taken = list(inspect.signature(type(part).__init__).parameters)[1:]
        if any(name not in values for name in taken):
            return False
    # Objects of such a class, for example functools.partial, may have arguments that the description lacks.
    elif type(part).__new__ is not object.__new__:
        return False
    return all(map(_is_written_whole, values.values()))
