"""What is learnt: how a batch goes through the model, its loss, and figures that are summed exactly."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.models.forward import forward
from fedraa.objectives.figures import Direction, Figures

Array = npt.NDArray[Any]
_MAIN_OUTPUTS = ("logits", "out", "0")  # by key or attribute, as transformers and torchvision name it, or by place

Sums = Mapping[str, Array]
"""Sums over samples by name, float64 [] or [k]."""


class Objective(ABC):
    """What a run learns. An own one needs `losses` alone; here a quantile, with a figure of its own:

        class Quantile(fl.Objective):
            better = {"covered": "max"}

            def losses(self, outputs, targets):
                error = targets - outputs.squeeze(1)
                return torch.maximum(0.9 * error, -0.1 * error)

            def measured(self, outputs, targets):
                return {"covered": targets <= outputs.squeeze(1)}

    `better` names the further figures of an evaluation, and which way each is better, "max" or "min"; `main` is the one
    that runs are judged by. `auxiliary` gives weights to further outputs of the model: a key or attribute of
    what it returns, or a place in a tuple, as text. They are in the loss of training alone, where the model returns
    them. Nothing may depend on anything but the arguments: every worker has its own copy.
    """

    better: ClassVar[Mapping[str, Direction]] = {}
    main: ClassVar[str] = "loss"
    classifies: ClassVar[bool] = False
    """Whether every sample has one label of several."""
    placed: ClassVar[bool] = False
    """Whether targets are of places in a sample, pixels or positions, which no transform may move."""
    name: ClassVar[str]
    """What sentences call it: that of the class unless it says so."""
    auxiliary: Mapping[str, float] = {}

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample [b], or of every part of every sample [b, ...]: the loss is the mean of all."""

    def counted(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Which of the losses count, a bool for each; None: all. Padding does not."""
        return None

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """What further figures are made of, for every sample [b] or [b, k]; it is summed over samples."""
        return {}

    def figures(self, sums: Sums) -> Mapping[str, float]:
        """The further figures of some samples, from what was summed over them: their parts as a rule.

        `sums` has the names that `measured` has, `loss`, and `count`, how many losses that is the sum of.
        """
        return {name: float(sums[name] / sums["count"]) for name in self.better}

    def forward(self, model: nn.Module, inputs: Any) -> Any:
        """What the model makes of a batch: of a dict by the names of its arguments, of a tuple in their order."""
        return forward(model, inputs)

    def outputs(self, result: Any) -> Tensor:
        """Return the output that the loss is of, in float32 if it is half precision.

        That is the result itself, its `logits`, its `out`, the first of a tuple, or the only tensor in a dict or an
        object. Raises TypeError if there is none, or more than one that it could be.
        """
        found = _main_output(result)
        return found.float() if found.dtype in (torch.float16, torch.bfloat16) else found

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch: what a step descends. 0 where nothing counts."""
        losses, counted = self.losses(outputs, targets), self.counted(outputs, targets)
        if counted is None:
            return losses.mean()
        return torch.where(counted, losses, 0.0).sum() / counted.sum().clamp(min=1)

    def training_loss(self, result: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, and those of auxiliary outputs with their weights."""
        loss = self.loss(outputs, targets)
        for name, weight in self.auxiliary.items():
            if (head := _head(result, name)) is not None:
                loss = loss + weight * self.loss(head.float(), targets)
        return loss

    def sums(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """`measured`, `loss` and `count` of every sample, float64 [b] or [b, k]."""
        losses, counted = self.losses(outputs, targets), self.counted(outputs, targets)
        counts = torch.ones_like(losses, dtype=torch.bool) if counted is None else counted
        found = {"loss": torch.where(counts, losses, 0.0), "count": counts}
        whole = {name: each.double().reshape(len(each), -1).sum(1) for name, each in found.items()}
        return whole | {name: each.double() for name, each in self.measured(outputs, targets).items()}

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> float:
        """The sum of all losses of a batch."""
        return float(self.sums(outputs, targets)["loss"].sum())

    def targets(self, train: Array, test: Array, classes: int) -> tuple[Array, Array, int]:
        """The targets of a data set as they must be, float32 or int64, and the number of outputs that they ask for.

        Both are one array where they are the targets of one client. ValueError, one sentence: the array, the row and
        what is wrong.
        """
        return numbers("y_train", train), numbers("y_test", test), max(1, classes)

    def of_clients(self, sums: Sums) -> Array:
        """The main figure of every client [c], from its sums [c] or [c, k]."""
        if self.main == "loss":
            return np.asarray(sums["loss"] / sums["count"])
        if type(self).figures is Objective.figures:
            return np.asarray(sums[self.main] / sums["count"])
        rows = range(len(sums["count"]))
        return np.array([self.figures({name: each[row] for name, each in sums.items()})[self.main] for row in rows])

    def figures_by_client(self, sums: Sums) -> dict[str, Array]:
        """Return the loss and each further figure of every client [c], from its sums [c] or [c, k]."""
        found = {"loss": np.asarray(sums["loss"] / sums["count"])}
        if type(self).figures is Objective.figures:
            return found | {name: np.asarray(sums[name] / sums["count"]) for name in self.better}
        rows = [self.figures({name: each[row] for name, each in sums.items()}) for row in range(len(sums["count"]))]
        return found | {name: np.array([row[name] for row in rows]) for name in self.better}

    def misfit(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        """What a model must return instead of outputs of this shape; None if they are right."""
        return None

    def summary(self) -> Figures:
        """The figures of an evaluation."""
        less = tuple(name for name, way in self.better.items() if way == "min")
        return Figures(tuple(self.better), self.main, less)


def _main_output(result: Any) -> Tensor:
    """Return the tensor that a model's result is judged by; TypeError if that is not clear."""
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
    """A tensor by key, attribute or place; None if there is none."""
    if isinstance(result, Mapping):
        found = result.get(name)
    elif name.isdigit():
        found = result[int(name)] if isinstance(result, tuple | list) and int(name) < len(result) else None
    else:
        found = getattr(result, name, None)
    return found if isinstance(found, Tensor) else None


def numbers(name: str, y: Array) -> Array:
    """Targets as float32, or int64 where they are integers."""
    if y.dtype.kind in "iub":
        return np.require(y, np.int64, ["C", "W"])
    if y.dtype.kind != "f":
        raise ValueError(f"{name} holds {y.dtype}; it must hold numbers")
    with np.errstate(over="ignore"):
        found = np.require(y, np.float32, ["C", "W"])
    refuse(name, y, ~np.isfinite(found), "must be a finite float32")
    return found


def integers(name: str, y: Array, ndim: int, form: str) -> Array:
    """Targets as int64 of so many dimensions."""
    if y.dtype.kind not in "iu" or y.ndim != ndim:
        raise ValueError(f"{name} is {y.dtype} of shape {y.shape}; it must be integers of shape {form}")
    return np.require(y, np.int64, ["C", "W"])


def refuse(name: str, y: Array, wrong: npt.NDArray[np.bool_], rule: str) -> None:
    """ValueError for the first row that has something wrong."""
    if wrong.any():
        row = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise ValueError(f"{name} has {y[row]} in row {row[0]}; it {rule}")
