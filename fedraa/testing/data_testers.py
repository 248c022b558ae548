"""Tests of data sources and transforms. The tests use synthetic inputs."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from fedraa.components.imports import is_path
from fedraa.config.experiment import Experiment
from fedraa.config.sections import DEFAULT_CLIENTS
from fedraa.data import (
    Dataset,
    DivisionSettings,
    FederatedDataset,
    Rows,
    divide_dataset,
    load_dataset,
    make_partitioner,
)
from fedraa.data.load import SOURCES
from fedraa.data.sources.rows import as_rows
from fedraa.data.transforms import Transforms
from fedraa.data.tree import list_leaves, map_tree
from fedraa.engine.run_data import target_check, with_clients
from fedraa.errors import InputError
from fedraa.objectives import make_objective
from fedraa.rng import generator
from fedraa.testing.samples import SmallExperiment, make_images, make_tokens, make_vectors, pixel_model, token_model
from fedraa.testing.tester import SIZE, Tester

EACH = "each sample independently"
ALONE = "same row in any read"
LABELS = "labels are those of the samples"
ROWS = 20
# If a data source is a function that returns the samples of one client, the test has this number of clients.
MADE_CLIENTS = 4


class TransformTester(Tester):
    """A test of a transform with the first synthetic data set that it accepts: images, numbers or tokens."""

    covers: ClassVar[bool] = False

    def __init__(self, part: Any, size: int = SIZE) -> None:
        super().__init__(part, size)
        self._x = torch.from_numpy(first_samples(part).x_train[:ROWS])
        self.part = part.fitted(self._x)
        self.further = () if part.random else (EACH,)

    def step(self, k: int) -> object:
        rows = slice((ROWS, 3, 1)[k % 3])
        x = self._x[rows].clone()
        with self.watch_arguments({"x": x}):
            changed = self.part.apply(x, generator(0, "check", k))
        if not self.part.random:
            among_all = self.part.apply(self._x, generator(0, "check", k))[rows]
            if not torch.allclose(changed, among_all, rtol=1e-4, atol=1e-5, equal_nan=True):
                self.broken.setdefault(
                    EACH,
                    "changes a sample differently in a small batch and in a large one; a transform that is not random "
                    "is applied to batches of any size, so let it change each sample independently, or define `fitted`",
                )
        return changed.numpy().tobytes()


def first_samples(part: Any) -> Dataset:
    """Return a synthetic data set that the transform accepts: the first accepted one of four.

    If the transform accepts none of the four, raise its error for the first one.
    """
    first: Exception | None = None
    for data in (make_images(3), make_images(1), make_vectors(), make_tokens()):
        try:
            Transforms((part,)).fitted(data.x_train[:ROWS])
        # A user-defined transform may raise any exception.
        except Exception as error:
            first = first or error
        else:
            return data
    assert first is not None
    raise first


def transform_experiment(part: Any, experiment: Callable[[Any], Experiment]) -> SmallExperiment:
    """Return the small experiment that `experiment` makes of the transform, with samples that the transform accepts."""
    data = first_samples(part)
    if data is make_tokens():
        tokenised = experiment(part).model_copy(update={"objective": "next-token"})
        return SmallExperiment(tokenised, data, token_model(data.classes))
    return SmallExperiment(experiment(part), data)


class DataTester(Tester):
    """A test of a data source. A row must have the same values if it is read alone, with other rows, or again."""

    covers: ClassVar[bool] = False

    def __init__(self, part: Any, size: int = SIZE) -> None:
        super().__init__(part, size)
        dataset = open_samples(part)
        experiment = with_clients(data_experiment(dataset, lambda clients: Experiment()).experiment, dataset)
        how = DivisionSettings(
            make_partitioner(experiment.partition),
            experiment.client_count,
            0,
            targets=target_check(make_objective(experiment.objective)),
        )
        self._data = divide_dataset(dataset, how)
        self._rows = None
        if isinstance(dataset, FederatedDataset) and not dataset.made:
            self._rows = as_rows("train", dataset.train, dataset.input, dataset.target)
            self.further = (ALONE, LABELS)

    def step(self, k: int) -> object:
        with self.watch_arguments({}):
            x, y = self._data.client(k % len(self._data.sizes))
        if self._rows is not None and k < 3:
            self._check_rows(
                self._rows, np.random.default_rng(k).choice(len(self._rows), min(3, len(self._rows)), False)
            )
        return [leaf.tobytes() for leaf in (*list_leaves(x), y)]

    def _check_rows(self, rows: Rows, chosen: Any) -> None:
        chosen = np.sort(chosen)
        x, y = rows.read(chosen)
        labels = np.asarray(rows.labels())
        for place, row in enumerate(chosen.tolist()):
            alone = rows.read(chosen[place : place + 1])
            if not all(map(_are_equal, list_leaves(alone), [leaf[place : place + 1] for leaf in list_leaves((x, y))])):
                self.broken.setdefault(ALONE, f"reads row {row} differently by itself and with rows {chosen.tolist()}")
            if not _are_equal(labels[row], np.asarray(y)[place]):
                self.broken.setdefault(
                    LABELS, f"returns {labels[row]} for row {row} from labels(), and {np.asarray(y)[place]} from read()"
                )


def _are_equal(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a), np.asarray(b))


def make_data(source: object) -> Any:
    """Return the data source that a name, an import path or an object stands for.

    For the name of a built-in data set, the result is a function that reads the samples again at each call. Raises
    ValueError if the data are invalid.
    """
    if isinstance(source, str) and not is_path(source.partition("(")[0].strip()):
        return partial(load_dataset, source, None)
    return SOURCES.resolve(source)


def open_samples(part: Any) -> Dataset | FederatedDataset:
    """Return the samples of a data source, which is an object or a function.

    A function whose only required argument is a client's number returns the samples of this client. Any other function
    returns all samples.
    """
    if isinstance(part, Dataset | FederatedDataset):
        return part
    if isinstance(part, Rows) or hasattr(part, "__getitem__"):
        rows = as_rows("component", part)
        return FederatedDataset(type(part).__name__, part, rows.read(np.arange(min(len(rows), 200))))
    if not callable(part):
        raise InputError("component", got=part, expected="a FederatedDataset, a Dataset or Rows")
    required = [item for item in inspect.signature(part).parameters.values() if item.default is item.empty]
    if not required:
        return open_samples(part())
    if len(required) > 1 or required[0].name == "data_dir":
        return open_samples(part(data_dir=None))
    shards = [part(client) for client in range(MADE_CLIENTS)]
    labels = np.concatenate([np.asarray(y) for _, y in shards])
    classes = None
    if labels.dtype.kind in "iu":
        classes = int(labels.max()) + 1
    return FederatedDataset(part.__qualname__, part, shards[0], classes, sizes=[len(y) for _, y in shards])


def data_experiment(part: Any, experiment: Callable[[int], Experiment]) -> SmallExperiment:
    """Return a small experiment with the data source, and an objective and a model that fit it.

    Args:
        part: The data source.
        experiment: A function from the number of clients to a small experiment.

    Raises:
        ValueError: The user must choose the objective or the model.
    """
    dataset = open_samples(part)
    x, y = _read_two(dataset)
    if isinstance(x, dict | tuple):
        problem = f"{dataset.name} has samples of several inputs, which need a custom model"
        raise InputError("component", problem, hint="try it in a run")
    fields: dict[str, Any] = {}
    model = None
    words = x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8
    if y.dtype.kind == "f":
        fields["objective"] = "regression"
    elif y.ndim == 2 and words:
        fields["objective"] = "next-token"
        model = token_model(_count_classes(dataset))
    elif y.ndim == 3:
        fields["objective"] = "segmentation"
        model = pixel_model(x.shape[1], _count_classes(dataset))
    if words and model is None:
        fields |= {"model": "fasttext", "hidden": Experiment.model_fields["hidden"].default}
    clients = None
    if isinstance(dataset, FederatedDataset):
        clients = dataset.own_clients
    base = experiment(clients or DEFAULT_CLIENTS)
    return SmallExperiment(base.model_copy(update=fields), dataset, model)


def _read_two(dataset: Dataset | FederatedDataset) -> tuple[Any, Any]:
    """Return the inputs and the targets of at most two test samples."""
    if isinstance(dataset, Dataset):
        return map_tree(lambda x: np.asarray(x)[:2], dataset.x_test), np.asarray(dataset.y_test)[:2]
    rows = as_rows("test", dataset.test, dataset.input, dataset.target)
    x, y = rows.read(np.arange(min(2, len(rows))))
    return x, np.asarray(y)


def _count_classes(dataset: Dataset | FederatedDataset) -> int:
    if dataset.classes:
        return int(dataset.classes)
    if isinstance(dataset, Dataset):
        return int(np.asarray(dataset.y_train).max() + 1)
    return int(as_rows("train", dataset.train, dataset.input, dataset.target).labels().max() + 1)
