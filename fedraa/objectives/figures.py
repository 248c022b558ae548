"""The figures of an evaluation: which there are, of which less is better, and the one that runs are judged by."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedraa.errors import InputError

Direction = Literal["max", "min"]
CLIENTS = ("client_mean", "client_std", "client_worst")
PERSONAL = ("personal_mean", "personal_std", "personal_worst")


@dataclass(frozen=True)
class Figures:
    """Columns of evals.csv: `names`, then loss, the figures over clients, which are of `main`, and `own` metrics.

    With `personal` those of clients after training of their own are before the metrics.

    Of those in `less`, and of the loss, less is better; of all others more.
    """

    names: tuple[str, ...] = ("accuracy",)
    main: str = "accuracy"
    less: tuple[str, ...] = ()
    personal: bool = False
    own: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All figures, in the order of evals.csv."""
        return (*self.names, "loss", *CLIENTS, *(PERSONAL if self.personal else ()), *self.own)

    def better(self, name: str) -> Direction:
        """Which way this figure gets better."""
        if name in ("client_mean", "client_worst", "personal_mean", "personal_worst"):
            name = self.main
        return "min" if name in ("loss", "client_std", "personal_std", *self.less) else "max"

    def best(self, values: Any) -> float:
        """The best of a column of the main figure; NaN counts for nothing unless all are."""
        return float(values.max() if self.better(self.main) == "max" else values.min())

    def described(self) -> dict[str, Any]:
        """As JSON, less the user's own metrics, which a configuration names elsewhere."""
        return {name: value for name, value in asdict(self).items() if name != "own"}


def figures_of(config: Mapping[str, Any]) -> Figures:
    """The figures of a run by its config.json; without a word of them they are those of a classification."""
    resolved = config["resolved"]
    given, own = resolved.get("figures"), tuple(resolved.get("metrics", ()))
    if given is None:
        return Figures(own=own)
    return Figures(tuple(given["names"]), given["main"], tuple(given["less"]), bool(given.get("personal")), own)


@dataclass(frozen=True)
class Target:
    """The run ends once the figure `name` is `value`, or better."""

    name: str
    value: float
    better: Direction

    def reached(self, value: float) -> bool:
        return value >= self.value if self.better == "max" else value <= self.value

    def __str__(self) -> str:
        return f"{self.name} {self.value:g}"


def make_target(text: str, figures: Figures) -> Target:
    """Return the target in `METRIC:VALUE`; raise InputError for a metric that the run does not have."""
    name, _, value = text.rpartition(":")
    if name not in figures.columns:
        raise InputError("target", got=text, expected=f"a metric of this run: {', '.join(figures.columns)}")
    return Target(name, float(value), figures.better(name))


def refuse_no_accuracy(value: float, figures: Figures) -> None:
    """Raise InputError if the run has no accuracy that could reach a target."""
    if "accuracy" not in figures.columns:
        problem = f"this run has no accuracy, but {', '.join(figures.columns)}"
        hint = f"give --target METRIC:VALUE, as --target {figures.main}:VALUE"
        raise InputError("target_accuracy", problem, got=value, hint=hint)
