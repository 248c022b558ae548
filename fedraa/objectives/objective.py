"""The base class of objectives, which compute the loss and the metrics of a model's outputs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.errors import InputError
from fedraa.models.forward import forward
from fedraa.objectives.metric_spec import Direction, MetricSpec

Array = npt.NDArray[Any]
# Names of a model's main output: `logits` in transformers, `out` in torchvision, and "0" for the first item of a tuple.
_MAIN_OUTPUTS = ("logits", "out", "0")

Sums = Mapping[str, Array]
"""Sums of measured values over samples, by the name of the value. Each is float64 [] or [k]."""


class Objective(ABC):
    """The objective of a run. A custom objective must define only `losses`.

    This example learns a quantile and adds a metric:

        class Quantile(fl.Objective):
            better = {"covered": "max"}

            def losses(self, outputs, targets):
                error = targets - outputs.squeeze(1)
                return torch.maximum(0.9 * error, -0.1 * error)

            def measured(self, outputs, targets):
                return {"covered": targets <= outputs.squeeze(1)}

    `better` has the better direction, "max" or "min", of each metric except the loss. Runs are compared by the metric
    `main`. `auxiliary` has the weights of additional outputs in the training loss. An output is named by its key,
    attribute or tuple index (as text). A missing output is skipped. The methods of an objective may depend only
    on their arguments, because each worker has a copy of the objective.
    """

    better: ClassVar[Mapping[str, Direction]] = {}
    main: ClassVar[str] = "loss"
    classifies: ClassVar[bool] = False
    """True if every sample has exactly one class label."""
    placed: ClassVar[bool] = False
    """True if targets belong to pixels or positions of a sample, so that a transform must not flip or shift samples."""
    name: ClassVar[str]
    """The name for error messages, by default the name of the class."""
    auxiliary: Mapping[str, float] = {}

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample [b], or of every position of every sample [b, ...]."""

    def counted(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return a mask that is False for losses to omit, such as those of padding; None to use all losses."""
        return None

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return named values of every sample, each [b] or [b, k]. `metrics` gets each value's sum over samples."""
        return {}

    def metrics(self, sums: Sums) -> Mapping[str, float]:
        """Return the metrics that `better` names, by default the mean of each value of `measured`.

        Args:
            sums: For some samples, the sum of each value of `measured`, the sum of the losses (`loss`), and the number
                of losses (`count`).
        """
        return {name: float(sums[name] / sums["count"]) for name in self.better}

    def forward(self, model: nn.Module, inputs: Any) -> Any:
        """Return the model's result. A dict is passed as keyword arguments, and a tuple as positional arguments."""
        return forward(model, inputs)

    def outputs(self, result: Any) -> Tensor:
        """Return the output for which the loss is computed. Half precision is converted to float32.

        It is the result itself, its `logits`, its `out`, the first item of a tuple, or the only tensor in a dict or a
        dataclass. Raises TypeError if the result has no such tensor, or several.
        """
        output = _main_output(result)
        if output.dtype in (torch.float16, torch.bfloat16):
            return output.float()
        return output

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of the losses for which the mask of `counted` is True, or 0 if there are none."""
        losses, counted = self.losses(outputs, targets), self.counted(outputs, targets)
        if counted is None:
            return losses.mean()
        return torch.where(counted, losses, 0.0).sum() / counted.sum().clamp(min=1)

    def training_loss(self, result: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss plus the weighted losses of auxiliary outputs.

        Args:
            result: The model's result for a batch, which may hold auxiliary outputs.
            outputs: The main output in this result.
            targets: The targets of the batch.
        """
        loss = self.loss(outputs, targets)
        for name, weight in self.auxiliary.items():
            head = _find_output(result, name)
            if head is not None:
                loss = loss + weight * self.loss(head.float(), targets)
        return loss

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return named values of every sample, float64 [b] or [b, k].

        They are the values of `measured`, the sum of the sample's losses (`loss`), and the number of these losses
        (`count`).
        """
        losses = self.losses(outputs, targets)
        counts = self.counted(outputs, targets)
        if counts is None:
            counts = torch.ones_like(losses, dtype=torch.bool)
        parts = {"loss": torch.where(counts, losses, 0.0), "count": counts}
        sums = {name: values.double().reshape(len(values), -1).sum(1) for name, values in parts.items()}
        return sums | {name: values.double() for name, values in self.measured(outputs, targets).items()}

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the sum of the losses. Losses outside the mask of `counted`, such as those of padding, are omitted."""
        return float(self.sums(outputs, targets)["loss"].sum())

    def targets(self, train: Array, test: Array, classes: int) -> tuple[Array, Array, int]:
        """Return a data set's targets as float32 or int64, and the number of outputs that they require.

        Args:
            train: The training targets.
            test: The test targets. To check the targets of one client, pass them as both `train` and `test`.
            classes: The number of classes that the user gave, or 0.

        Raises:
            InputError: A target is malformed; the error names the array and the row.
        """
        return require_numbers("y_train", train), require_numbers("y_test", test), max(1, classes)

    def of_clients(self, sums: Sums) -> Array:
        """Return the main metric of every client [c], from sums [c] or [c, k] over each client's samples."""
        if self.main == "loss":
            return np.asarray(sums["loss"] / sums["count"])
        return self.metrics_by_client(sums)[self.main]

    def metrics_by_client(self, sums: Sums) -> dict[str, Array]:
        """Return the loss and the metrics of every client [c], from sums [c] or [c, k] over each client's samples."""
        metrics = {"loss": np.asarray(sums["loss"] / sums["count"])}
        if type(self).metrics is Objective.metrics:
            return metrics | {name: np.asarray(sums[name] / sums["count"]) for name in self.better}
        clients = range(len(sums["count"]))
        rows = [self.metrics({name: values[client] for name, values in sums.items()}) for client in clients]
        return metrics | {name: np.array([row[name] for row in rows]) for name in self.better}

    def expected_outputs(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        """Return the expected shape of outputs as text if their shape is wrong, otherwise None.

        Args:
            outputs: The main output of the model for a batch.
            targets: The targets of the batch.
            classes: The number of classes.
        """
        return None

    def summary(self) -> MetricSpec:
        less = tuple(name for name, way in self.better.items() if way == "min")
        return MetricSpec(tuple(self.better), self.main, less)


def _main_output(result: Any) -> Tensor:
    """Return the main tensor of a model's result. Raises TypeError if the result has no such tensor, or several."""
    if isinstance(result, Tensor):
        return result
    for name in _MAIN_OUTPUTS:
        output = _find_output(result, name)
        if output is not None:
            return output
    named: Mapping[Any, Any] = getattr(result, "__dict__", {})
    if isinstance(result, tuple | list):
        named = dict(enumerate(result))
    elif isinstance(result, Mapping):
        named = result
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    if not tensors:
        raise TypeError(type(result).__name__)
    raise TypeError(f"{type(result).__name__} with the tensors {', '.join(map(str, tensors))}")


def _find_output(result: Any, name: str) -> Tensor | None:
    if isinstance(result, Mapping):
        output = result.get(name)
    elif not name.isdigit():
        output = getattr(result, name, None)
    elif isinstance(result, tuple | list) and int(name) < len(result):
        output = result[int(name)]
    else:
        output = None
    return output if isinstance(output, Tensor) else None


def require_numbers(name: str, y: Array) -> Array:
    """Return targets as float32, or as int64 if they are integers or booleans."""
    if y.dtype.kind in "iub":
        return np.require(y, np.int64, ["C", "W"])
    if y.dtype.kind != "f":
        raise InputError(name, got=y, expected="numbers")
    with np.errstate(over="ignore"):
        values = np.require(y, np.float32, ["C", "W"])
    refuse_wrong(name, y, ~np.isfinite(values), "finite numbers that float32 can hold")
    return values


def require_integers(name: str, y: Array, ndim: int, form: str) -> Array:
    """Return targets as int64.

    Args:
        name: The name of the array for errors.
        y: The targets.
        ndim: The required number of dimensions.
        form: The required shape as text for errors.

    Raises:
        InputError: The targets are not integers, or do not have `ndim` dimensions.
    """
    if y.dtype.kind not in "iu" or y.ndim != ndim:
        raise InputError(name, got=y, expected=f"integers of shape {form}")
    return np.require(y, np.int64, ["C", "W"])


def refuse_wrong(name: str, y: Array, wrong: npt.NDArray[np.bool_], expected: str) -> None:
    """Raise InputError about the first wrong value, if any.

    Args:
        name: The name of the array.
        y: The values.
        wrong: True for each wrong value, in the shape of `y`.
        expected: The description of correct values.
    """
    if wrong.any():
        place = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise InputError(f"{name} row {place[0]}", got=y[place].item(), expected=expected)
