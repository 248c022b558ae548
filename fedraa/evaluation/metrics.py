"""Further figures of an evaluation: the user's own, each a number per test sample and the mean of all of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedraa.components.registry import Seam
from fedraa.data.tree import mapped, take
from fedraa.errors import short_text
from fedraa.models.statistics import kept_buffers
from fedraa.objectives import Classification, Figures, Objective
from fedraa.objectives.figures import PERSONAL, Direction

METRICS: Seam[Any] = Seam("metrics", (), {})
# Names that mean something else in logs and evaluations, in summaries, and in the tables of a report.
_LOGS = ("seq", "kind", "t", "wall", "step", "accuracy", "loss", "client_mean", "client_std", "client_worst", *PERSONAL)
_TOTALS = ("reason", "steps", "tasks", "time", "best_accuracy", "bytes_down", "bytes_up", "flops", "faults", "shards")
_FAILURES = ("dropped", "dropped_clients", "quarantined")
_MORE_TOTALS = ("staleness_mean", "staleness_max", "time_to_target", "model_sha256", "metrics")
_MARKS = ("note",)
_TABLES = ("method", "seed", "seeds", "directory", "command", "ended_by", "bytes", "idle", "sharpness", "p_accuracy")
TAKEN = frozenset((*_LOGS, *_TOTALS, *_FAILURES, *_MORE_TOTALS, *_MARKS, *_TABLES))


class Metric(ABC):
    """A figure of every evaluation: the mean of `values` over all test samples, summed exactly.

        class Top3(fl.Metric):
            name = "top3"

            def values(self, outputs, labels):
                return (outputs.topk(3).indices == labels[:, None]).any(dim=1)

    A plain function with these arguments is one, too. `name` is the column of evals.csv; without it the name of the
    class, or of the function, is. Values must depend on nothing but the arguments: a worker has its own copy.
    """

    name: str
    better: ClassVar[Direction] = "max"
    """Which way it gets better: `max` or `min`."""

    @abstractmethod
    def values(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One number per sample [b], of what the model makes of them, `outputs` [b, ...], and their `labels` [b]."""


@dataclass(frozen=True)
class NamedMetric:
    """A metric that was given, in whatever way."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    better: Direction = "max"

    def values(self, outputs: Tensor, labels: Tensor) -> npt.NDArray[np.float64]:
        """One number per sample, float64 [b]; ValueError with one sentence if they are not that."""
        try:
            given = self.function(outputs.clone(), labels.clone())  # which the next one needs as they are
        except Exception as error:
            raise ValueError(f"metrics: {self.name} failed with {type(error).__name__}: {error}") from error
        if not isinstance(given, Tensor) or given.shape != labels.shape[:1] or given.is_complex():
            got = f"{given.dtype} {list(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(
                f"metrics: {self.name} gave {got} for a batch of {len(labels)}; it must give a tensor of one number "
                f"per sample, [{len(labels)}]"
            )
        return np.asarray(given.detach().cpu().to(torch.float64).numpy(), np.float64)


def make_metrics(given: Sequence[object], figures: Figures | None = None) -> tuple[NamedMetric, ...]:
    """The metrics that were given, each an import path, an object or a function; `figures` has names that are taken.

    Raises ValueError with one sentence: what is no metric, and names that are taken or that no column can have.
    """
    made = tuple(_named(each) for each in given)
    names = [metric.name for metric in made]
    for number, name in enumerate(names):
        if not name.isidentifier() or iskeyword(name) or name.startswith("_"):
            raise ValueError(f"metrics: the name {name!r} is no column's; give the metric a name such as top3")
        if name in TAKEN or name in names[:number] or (figures is not None and name in taken_by(figures)):
            raise ValueError(f"metrics: the name {name} is taken; give the metric another name")
    return made


def taken_by(figures: Figures) -> tuple[str, ...]:
    """The names of an objective's own figures, and of the best one in a summary."""
    return (*figures.names, f"best_{figures.main}")


def _named(given: object) -> NamedMetric:
    made = METRICS.make(given)
    function = getattr(made, "values", made)
    name = getattr(made, "name", None) or getattr(made, "__name__", type(made).__name__)
    if not callable(function) or isinstance(made, dict):
        raise ValueError(f"metrics: {short_text(made)} has no method values, and is no function (outputs, labels)")
    better: Direction = getattr(made, "better", "max")
    if better not in ("max", "min"):
        raise ValueError(f"metrics: {name} has better = {short_text(better)}; takes max or min")
    return NamedMetric(str(name), function, better)


def mean(values: npt.NDArray[np.float64]) -> float:
    """The exact mean of values [n], rounded once, in whatever order they are; not finite if one of them is not."""
    with np.errstate(invalid="ignore"):
        return math.fsum(values) / len(values) if np.isfinite(values).all() else float(values.mean())


def refuse_misfit(
    metrics: Sequence[NamedMetric],
    model: torch.nn.Module,
    x: Any,
    y: Tensor,
    objective: Objective | None = None,
) -> None:
    """Tries the metrics on a batch, and on one sample, as an evaluation's last batch may be.

    Raises ValueError with one sentence if one of them gives anything but a finite number per sample.
    """
    if not metrics:
        return
    training = model.training
    model.eval()
    with torch.no_grad(), kept_buffers(model):
        objective = objective or Classification()
        for rows in (len(y), 1):
            outputs = objective.outputs(objective.forward(model, mapped(Tensor.clone, take(x, slice(rows)))))
            for metric in metrics:
                if not np.isfinite(metric.values(outputs, y[:rows])).all():
                    raise ValueError(f"metrics: {metric.name} gave what is not finite for the untrained model")
    model.train(training)
