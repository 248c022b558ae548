"""The metrics of a run, the main metric, and whether higher or lower values of a metric are better."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedraa.errors import InputError

Direction = Literal["max", "min"]
# The lowest and the highest possible value of a metric.
Bounds = tuple[float, float]
SHARE: Bounds = (0.0, 1.0)
NOT_NEGATIVE: Bounds = (0.0, math.inf)
UNBOUNDED: Bounds = (-math.inf, math.inf)
_BOUNDS: dict[str, Bounds] = {
    **dict.fromkeys(("accuracy", "f1", "exact", "mean_iou", "pixel_accuracy"), SHARE),
    **dict.fromkeys(("mse", "mae", "perplexity", "client_std", "personal_std"), NOT_NEGATIVE),
    "r2": (-math.inf, 1.0),
}
# The form METRIC:VALUE of a target.
TARGET = re.compile(r"[A-Za-z_]\w*:[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
CLIENTS: tuple[str, ...] = ("client_mean", "client_std", "client_worst")
PERSONAL = ("personal_mean", "personal_std", "personal_worst")
_LOGS = ("seq", "kind", "t", "wall", "step", "loss", *CLIENTS, *PERSONAL)
_TOTALS = ("reason", "steps", "tasks", "time", "best_accuracy", "bytes_down", "bytes_up", "flops", "faults", "shards")
_FAILURES = ("dropped", "dropped_clients", "quarantined")
_MORE_TOTALS = ("energy", "staleness_mean", "staleness_max", "time_to_target", "model_sha256", "metrics")
_MARKS = ("note", "attack_success")
_TABLES = ("method", "seed", "seeds", "directory", "command", "ended_by", "bytes", "idle", "sharpness", "p_accuracy")
# Logs, summaries or reports use these names, so no metric of an objective can have one of them.
TAKEN_NAMES = frozenset((*_LOGS, *_TOTALS, *_FAILURES, *_MORE_TOTALS, *_MARKS, *_TABLES))


@dataclass(frozen=True)
class MetricSpec:
    """The metrics of a run, which are the columns of evals.csv.

    The columns are the metrics `names`, the loss, statistics of the metric `main` over clients, and the custom metrics
    `own`. If `personal` is True, there are also statistics of personal models. Lower values are better for the loss and
    the metrics in `less`. Higher values are better for all other metrics.
    """

    names: tuple[str, ...] = ("accuracy",)
    main: str = "accuracy"
    less: tuple[str, ...] = ()
    personal: bool = False
    own: tuple[str, ...] = ()

    @property
    def personal_main(self) -> str:
        """Return the column of clients.csv with the main metric of personal models."""
        return f"personal_{self.main}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of all metrics in the order of evals.csv."""
        clients = CLIENTS
        if self.personal:
            clients += PERSONAL
        return (*self.names, "loss", *clients, *self.own)

    def better(self, name: str) -> Direction:
        """Return "min" if lower values of the metric `name` are better, otherwise "max"."""
        name = self._of_model(name)
        if name in ("loss", "client_std", "personal_std", *self.less):
            return "min"
        return "max"

    def bounds(self, name: str) -> Bounds:
        """Return the possible values of the metric `name`. Losses and custom metrics may have any value."""
        return _BOUNDS.get(self._of_model(name), UNBOUNDED)

    def _of_model(self, name: str) -> str:
        """Return the main metric for its mean and its worst value over clients, otherwise the same name."""
        return self.main if name in ("client_mean", "client_worst", "personal_mean", "personal_worst") else name

    def best(self, values: Any) -> float:
        """Return the best value of the main metric in a pandas column, ignoring NaN."""
        return float(values.max() if self.better(self.main) == "max" else values.min())

    def described(self) -> dict[str, Any]:
        """Return the fields that config.json stores: all except `own`, which is stored under the key `metrics`."""
        return {name: value for name, value in asdict(self).items() if name != "own"}


def metric_heading(name: str) -> str:
    """Return the name of a metric as users see it, with spaces for underscores."""
    return name.replace("_", " ")


def metric_title(name: str) -> str:
    """Return the name of a metric as the beginning of a title or a sentence, with a capital letter."""
    heading = metric_heading(name)
    return heading[0].upper() + heading[1:]


def read_metric_spec(config: Mapping[str, Any]) -> MetricSpec:
    """Return the metrics of a run from its config.json, by default those of classification."""
    resolved = config["resolved"]
    own = tuple(resolved.get("metrics", ()))
    fields = resolved.get("metric_spec")
    if fields is None:
        return MetricSpec(own=own)
    return MetricSpec(tuple(fields["names"]), fields["main"], tuple(fields["less"]), bool(fields.get("personal")), own)


@dataclass(frozen=True)
class Target:
    """A stop condition: the metric `name` reaches `value` or better."""

    name: str
    value: float
    better: Direction

    def reached(self, value: float) -> bool:
        return value >= self.value if self.better == "max" else value <= self.value

    def __str__(self) -> str:
        return f"{self.name} {self.value:g}"


def make_target(text: str, metric_spec: MetricSpec) -> Target:
    """Return the target that `METRIC:VALUE` describes.

    Raises InputError if the text has another form, or the run does not have the metric.
    """
    if not TARGET.fullmatch(text):
        # A user may have named the column to predict.
        hint = "for the column to predict of a table, give --dataset \"csv('FILE', target='COLUMN')\""
        raise InputError("target", got=text, expected="METRIC:VALUE, such as r2:0.5", hint=hint)
    name, _, value = text.rpartition(":")
    if name not in metric_spec.columns:
        raise InputError("target", got=text, expected=f"a metric of this run: {', '.join(metric_spec.columns)}")
    return Target(name, float(value), metric_spec.better(name))


def refuse_no_accuracy(value: float, metric_spec: MetricSpec) -> None:
    """Raise InputError about a target accuracy if the run does not have the metric accuracy."""
    if "accuracy" not in metric_spec.columns:
        problem = f"this run has no accuracy, but {', '.join(metric_spec.columns)}"
        hint = f"use --target METRIC:VALUE, such as --target {metric_spec.main}:VALUE"
        raise InputError("target_accuracy", problem, got=value, hint=hint)
