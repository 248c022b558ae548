"""The base class of objectives: how a batch goes through the model, its loss, and metrics from exact sums."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.errors import InputError
from fedraa.models.forward import forward
from fedraa.objectives.figures import Direction, Figures

Array = npt.NDArray[Any]
# The main output by key or attribute, as transformers and torchvision name it, or by place.
_MAIN_OUTPUTS = ("logits", "out", "0")

Sums = Mapping[str, Array]
"""Sums over samples by name, float64 [] or [k]."""


class Objective(ABC):
    """The objective of a run. A custom one needs only `losses`; this one learns a quantile and adds a metric:

        class Quantile(fl.Objective):
            better = {"covered": "max"}

            def losses(self, outputs, targets):
                error = targets - outputs.squeeze(1)
                return torch.maximum(0.9 * error, -0.1 * error)

            def measured(self, outputs, targets):
                return {"covered": targets <= outputs.squeeze(1)}

    `better` names the further metrics of an evaluation, and the better direction of each, "max" or "min". Runs are
    compared by `main`. `auxiliary` gives weights to further outputs of the model: a key or attribute of its result, or
    a place in a tuple, as text. Only the training loss has them, if the model returns them. Every worker has its own
    copy, so that methods may depend only on their arguments.
    """

    better: ClassVar[Mapping[str, Direction]] = {}
    main: ClassVar[str] = "loss"
    classifies: ClassVar[bool] = False
    """True if every sample has one label of several."""
    placed: ClassVar[bool] = False
    """True if targets belong to places in a sample, pixels or positions, which no transform may move."""
    name: ClassVar[str]
    """The name in errors, by default the name of the class."""
    auxiliary: Mapping[str, float] = {}

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample [b], or of its parts [b, ...]. The loss of a batch is the mean of all."""

    def counted(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return a bool for each loss, True if it counts; None means all. Padding does not count."""
        return None

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """Return the values of every sample, [b] or [b, k], whose sums give the further metrics."""
        return {}

    def figures(self, sums: Sums) -> Mapping[str, float]:
        """Return the further metrics of some samples, from sums over them: by default the means.

        `sums` has the names of `measured`, `loss`, and `count`, the number of losses in the sum.
        """
        return {name: float(sums[name] / sums["count"]) for name in self.better}

    def forward(self, model: nn.Module, inputs: Any) -> Any:
        """Return the model's result for a batch: a dict by the names of its arguments, a tuple in their order."""
        return forward(model, inputs)

    def outputs(self, result: Any) -> Tensor:
        """Return the output that the loss is of, in float32 if it is half precision.

        This is the result itself, its `logits`, its `out`, the first item of a tuple, or the only tensor in a dict or
        an object. Raises TypeError if there is no such tensor, or several.
        """
        output = _main_output(result)
        return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch, or 0 if nothing counts."""
        losses, counted = self.losses(outputs, targets), self.counted(outputs, targets)
        if counted is None:
            return losses.mean()
        return torch.where(counted, losses, 0.0).sum() / counted.sum().clamp(min=1)

    def training_loss(self, result: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss plus the weighted losses of auxiliary outputs."""
        loss = self.loss(outputs, targets)
        for name, weight in self.auxiliary.items():
            if (head := _head(result, name)) is not None:
                loss = loss + weight * self.loss(head.float(), targets)
        return loss

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return `measured`, `loss` and `count` of every sample, float64 [b] or [b, k]."""
        losses = self.losses(outputs, targets)
        counts = self.counted(outputs, targets)
        if counts is None:
            counts = torch.ones_like(losses, dtype=torch.bool)
        parts = {"loss": torch.where(counts, losses, 0.0), "count": counts}
        sums = {name: values.double().reshape(len(values), -1).sum(1) for name, values in parts.items()}
        return sums | {name: values.double() for name, values in self.measured(outputs, targets).items()}

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the sum of all losses of a batch."""
        return float(self.sums(outputs, targets)["loss"].sum())

    def targets(self, train: Array, test: Array, classes: int) -> tuple[Array, Array, int]:
        """Return the targets of a data set as float32 or int64, and the number of outputs that they need.

        For the targets of one client both arrays are the same. Raises InputError about the array and the row.
        """
        return numbers("y_train", train), numbers("y_test", test), max(1, classes)

    def of_clients(self, sums: Sums) -> Array:
        """Return the main metric of every client [c], from its sums [c] or [c, k]."""
        if self.main == "loss":
            return np.asarray(sums["loss"] / sums["count"])
        if type(self).figures is Objective.figures:
            return np.asarray(sums[self.main] / sums["count"])
        rows = range(len(sums["count"]))
        return np.array([self.figures({name: each[row] for name, each in sums.items()})[self.main] for row in rows])

    def figures_by_client(self, sums: Sums) -> dict[str, Array]:
        """Return the loss and each further metric of every client [c], from its sums [c] or [c, k]."""
        metrics = {"loss": np.asarray(sums["loss"] / sums["count"])}
        if type(self).figures is Objective.figures:
            return metrics | {name: np.asarray(sums[name] / sums["count"]) for name in self.better}
        rows = [self.figures({name: each[row] for name, each in sums.items()}) for row in range(len(sums["count"]))]
        return metrics | {name: np.array([row[name] for row in rows]) for name in self.better}

    def misfit(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        """Return the form that a model must return if outputs of this shape are wrong, else None."""
        return None

    def summary(self) -> Figures:
        """Return the metrics of an evaluation."""
        less = tuple(name for name, way in self.better.items() if way == "min")
        return Figures(tuple(self.better), self.main, less)


def _main_output(result: Any) -> Tensor:
    """Return the main tensor of a model's result; raise TypeError if it is not clear."""
    if isinstance(result, Tensor):
        return result
    for name in _MAIN_OUTPUTS:
        if (found := _head(result, name)) is not None:
            return found
    if isinstance(result, tuple | list):
        named = dict(enumerate(result))
    else:
        named = dict(result) if isinstance(result, Mapping) else dict(getattr(result, "__dict__", {}))
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    names = f" with the tensors {', '.join(map(str, tensors))}" if tensors else ""
    raise TypeError(f"{type(result).__name__}{names}")


def _head(result: Any, name: str) -> Tensor | None:
    """Return a tensor by key, attribute or place, or None."""
    if isinstance(result, Mapping):
        found = result.get(name)
    elif name.isdigit():
        found = result[int(name)] if isinstance(result, tuple | list) and int(name) < len(result) else None
    else:
        found = getattr(result, name, None)
    return found if isinstance(found, Tensor) else None


def numbers(name: str, y: Array) -> Array:
    """Return targets as float32, or int64 if they are integers."""
    if y.dtype.kind in "iub":
        return np.require(y, np.int64, ["C", "W"])
    if y.dtype.kind != "f":
        raise InputError(name, got=y, expected="numbers")
    with np.errstate(over="ignore"):
        values = np.require(y, np.float32, ["C", "W"])
    refuse(name, y, ~np.isfinite(values), "finite numbers that float32 can hold")
    return values


def integers(name: str, y: Array, ndim: int, form: str) -> Array:
    """Return targets with `ndim` dimensions as int64."""
    if y.dtype.kind not in "iu" or y.ndim != ndim:
        raise InputError(name, got=y, expected=f"integers of shape {form}")
    return np.require(y, np.int64, ["C", "W"])


def refuse(name: str, y: Array, wrong: npt.NDArray[np.bool_], expected: str) -> None:
    """Raise InputError about the first row that has a wrong value."""
    if wrong.any():
        place = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise InputError(f"{name} row {place[0]}", got=y[place].item(), expected=expected)
