"""The description of a model's inputs in config.json: classes, scaling, fitted transforms, and shape of a sample."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedraa.components.calls import convert_errors
from fedraa.components.text import KIND, describe_component, is_built_in
from fedraa.data.scaling import ChannelScaling, Scaling
from fedraa.data.transforms import Transform, Transforms
from fedraa.data.transforms.transform import transform_name
from fedraa.data.tree import Tree
from fedraa.errors import InputError
from fedraa.rundir import packed_columns

# A JSON object with this key describes a scaling.
_NUMBERS = "mean"
# `Inputs.fitted` has this text for a transform that cannot be restored: the values that were fitted to the data are not
# among the arguments of the transform.
NOT_RESTORABLE = "lost"
# A JSON object with this key describes a sample.
_SHAPE = "shape"


@dataclass(frozen=True)
class Inputs:
    """The form of a model's inputs, without the data.

    Attributes:
        classes: The number of classes.
        batch: Two samples of zeros, in the form in which the model takes samples.
        scaling: The scaling of the inputs.
        fitted: An entry for each transform that is not random: the description of the fitted transform, None if it is
            not fitted to data, or `NOT_RESTORABLE`.
    """

    classes: int
    batch: Tree
    scaling: Scaling
    fitted: tuple[Any, ...]

    def restore_transforms(self, transforms: Transforms) -> Transforms:
        """Return the transforms that are not random. They have the values that the run fitted to its data.

        Raises InputError if their number differs from the run's, or if a fitted transform cannot be restored.
        """
        parts = transforms.fixed.parts
        if len(parts) != len(self.fitted):
            raise InputError(
                "transforms", f"{len(parts)} of them are not random", expected=f"{len(self.fitted)}, as in the run"
            )
        fitted = []
        for part, described in zip(parts, self.fitted, strict=True):
            if described == NOT_RESTORABLE:
                raise InputError(
                    "transforms",
                    f"{transform_name(part)} was fitted to the data, but its arguments do not hold the fitted values",
                    hint="let `fitted` return a transform with arguments that hold them",
                )
            if described is not None:
                part = _restore_transform(part, described)
            fitted.append(part)
        return Transforms(tuple(fitted), transforms.seed)


def _restore_transform(part: Transform, described: Mapping[str, Any]) -> Transform:
    with convert_errors("transforms", part):
        return type(part)(**{name: value for name, value in described.items() if name != KIND})


def describe_inputs(classes: int, example: Tree, scaling: Scaling, unfitted: Transforms, fitted: Transforms) -> Any:
    """Return a run's inputs as JSON for `read_inputs`.

    Args:
        classes: The number of classes.
        example: A batch of tensors.
        scaling: The scaling of the inputs.
        unfitted: The transforms before fitting.
        fitted: The transforms after fitting.
    """
    pairs = zip(unfitted.fixed.parts, fitted.parts, strict=True)
    return {
        "classes": classes,
        "samples": _to_json(example, lambda x: {_SHAPE: list(x.shape[1:]), "dtype": str(x.dtype).rpartition(".")[2]}),
        "scaling": _to_json(scaling, _describe_scaling),
        "transforms": [_describe_fitted(before, part) for before, part in pairs],
    }


def _describe_fitted(before: Transform, part: Transform) -> Any:
    """Return a transform's entry in `Inputs.fitted`: None, a description, or `NOT_RESTORABLE`.

    `before` is the transform before it was fitted to the data, and `part` the fitted one.
    """
    if type(before).fitted is Transform.fitted:
        return None
    described = describe_component(part)
    if is_built_in(type(part)) or described != describe_component(before):
        return described
    return NOT_RESTORABLE


def read_inputs(config: Mapping[str, Any]) -> Inputs:
    """Return the inputs that a run's configuration describes.

    Raises InputError if the description is damaged.
    """
    try:
        written = config["resolved"]["inputs"]
        return Inputs(
            int(written["classes"]),
            _from_json(written["samples"], _SHAPE, _zero_samples),
            _from_json(written["scaling"], _NUMBERS, _read_scaling),
            tuple(written["transforms"]),
        )
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(
            "run",
            f"config.json does not hold the scaling of the inputs, or is damaged ({type(error).__name__} {error})",
        ) from None


def _describe_scaling(scaling: ChannelScaling | None) -> Any:
    if scaling is None:
        return None
    return {name: packed_columns.pack_column(getattr(scaling, name).astype(np.float64)) for name in (_NUMBERS, "std")}


def _read_scaling(written: Mapping[str, Any]) -> ChannelScaling:
    mean = np.array(packed_columns.unpack_column(written[_NUMBERS]), np.float32)
    std = np.array(packed_columns.unpack_column(written["std"]), np.float32)
    return ChannelScaling(mean, std)


def _zero_samples(written: Mapping[str, Any]) -> torch.Tensor:
    return torch.zeros([2, *written[_SHAPE]], dtype=getattr(torch, written["dtype"]))


def _to_json(tree: Tree, describe_leaf: Any) -> Any:
    """Return a tree as JSON. A dict becomes a list of pairs, which keeps the order of its names."""
    if isinstance(tree, dict):
        return {"names": [[name, _to_json(part, describe_leaf)] for name, part in tree.items()]}
    if isinstance(tree, tuple):
        return [_to_json(part, describe_leaf) for part in tree]
    return describe_leaf(tree)


def _from_json(written: Any, key: str, read_leaf: Any) -> Tree:
    """Return the tree from JSON that `_to_json` returned. A JSON object with the key `key` is a leaf."""
    if isinstance(written, list):
        return tuple(_from_json(part, key, read_leaf) for part in written)
    if isinstance(written, Mapping) and key not in written:
        return {name: _from_json(part, key, read_leaf) for name, part in written["names"]}
    if written is None:
        return None
    return read_leaf(written)
