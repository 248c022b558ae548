"""The model and the data of all trials of a tuning, if the user passed them as objects."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from fedraa.data import Dataset, FederatedDataset
from fedraa.data.tree import list_leaves
from fedraa.engine.run_spec import RunSpec


@dataclass(frozen=True, eq=False)
class TrialObjects:
    """The model and the data of all trials, if the user passed them as objects instead of names."""

    model: nn.Module | None = None
    dataset: Dataset | FederatedDataset | None = None

    def by_name(self) -> dict[str, object]:
        """Return the objects that are not None, by the name of their field."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def digest_objects(self, spec: RunSpec) -> dict[str, str]:
        """Return digests of the objects that the user passed: of a model's parameters, and of a dataset's samples."""
        data = spec.data.dataset
        arrays = {
            "model": [spec.params],
            "dataset": [*list_leaves(data.x_train), *list_leaves(data.x_test), data.y_train, data.y_test],
        }
        return {name: digest_arrays(arrays[name]) for name in self.by_name()}


def digest_arrays(arrays: Sequence[np.ndarray]) -> str:
    """Return the SHA-256 of the arrays' bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
