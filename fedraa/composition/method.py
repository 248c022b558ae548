"""A method: four choices, each an object with its implementation, and the flags that replace their values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from fedraa.client.local_training import LocalTraining
from fedraa.components.registry import ComponentRegistry
from fedraa.components.text import describe, text_of
from fedraa.errors import InputError
from fedraa.server.async_rule import ASYNC_RULE, AsyncRule
from fedraa.server.optimizers import SERVER_OPTIMIZER
from fedraa.server.round_update import Mean
from fedraa.server.schedule import SCHEDULER, Rounds, Schedule
from fedraa.submodels.policies import SUBMODEL
from fedraa.submodels.policies.policy import SubmodelPolicy
from fedraa.submodels.policies.slices import Full

# The values that each flag replaces: the first of the paths that the method has. Whole choices precede their values.
FLAGS: dict[str, tuple[str, ...]] = {
    "submodel": ("submodel",),
    "async_rule": ("update",),
    "aggregator": ("update.aggregator",),
    "server_optimizer": ("update.optimizer",),
    "weights": ("update.weights",),
    "local_terms": ("local.terms",),
    "ratios": ("submodel.ratios",),
    "capacities": ("submodel.capacities.levels",),
    "redraw": ("submodel.capacities.redraw",),
    "mask_level": ("submodel.level",),
    "uncovered_every": ("submodel.uncovered_every",),
    "stride": ("submodel.stride",),
    "shuffled": ("submodel.shuffled",),
    "density": ("submodel.density",),
    "reprune_every": ("submodel.every",),
    "split": ("submodel.at",),
    "local_optimizer": ("local.local_optimizer",),
    "local_optimizer_state": ("local.optimizer_state",),
    "momentum": ("local.momentum",),
    "full_rate": ("local.full_rate",),
    "calibrate": ("local.calibrate",),
    "weight_decay": ("local.weight_decay",),
    "clip": ("local.clip",),
    "proximal": ("local.proximal",),
    "sam": ("local.sam",),
    "fresh": ("local.fresh",),
    "mixing": ("update.mixing",),
    "staleness": ("update.staleness",),
    "gain": ("update.gain",),
    "balance": ("update.balance",),
    "buffer_size": ("update.size",),
    "delay_limit": ("update.delay_limit",),
    "server_lr": ("update.optimizer.server_lr", "update.server_lr"),
    "scheduler": ("schedule.scheduler",),
    "delay_bound": ("schedule.delay_bound",),
    "participation": ("schedule.participation",),
    "concurrency": ("schedule.concurrency",),
    "compress_down": ("schedule.download",),
    "average": ("schedule.average",),
    "updates": ("schedule.updates",),
    "rounds": ("schedule.rounds",),
}
SEAMS: dict[str, ComponentRegistry[Any]] = {
    "submodel": SUBMODEL,
    "async_rule": ASYNC_RULE,
    "server_optimizer": SERVER_OPTIMIZER,
}
AXES: dict[str, tuple[type, ...]] = {
    "submodel": (SubmodelPolicy,),
    "local": (LocalTraining,),
    "update": (AsyncRule, Mean),
    "schedule": (Schedule,),
}
_MISSING = object()


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """The settings with which a paper runs its method. The other settings are the same for all methods.

    Attributes:
        source: The section, table or code that states them.
        values: Fields of an experiment.
        client_fraction: The share of all clients that takes part in a round, None if the paper states none.
        unstated: The settings that the paper leaves open.
    """

    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    client_fraction: float | None = None
    unstated: str = ""

    def fields(self, clients: int) -> dict[str, Any]:
        """Return the fields of an experiment with this number of clients."""
        if self.client_fraction is None:
            return dict(self.values)
        return {**self.values, "participation": f"sample:{max(1, round(self.client_fraction * clients))}"}


# Settings that several method files share.
PLAIN_SGD = LocalTraining(momentum=0.0)
ONE_STEP_THEORY = PaperSettings(
    source="one local step, as in the paper's theory", values={"local_steps": 1, "momentum": 0.0}, unstated="rate"
)
NO_PAPER = PaperSettings(source="no paper")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: four choices, the paper that they come from, and advice for users.

    Attributes:
        name: The name under which it is registered; `own` for a custom method.
        paper: The paper, with the algorithm.
        formula: The server's step in one line.
        when: The situation in which it is a good choice.
        note: The differences between this implementation and the paper.
        variant_of: The method of which this one is a baseline or a variant.
        submodel: The part of the model that a client trains.
        local: The local training of a client.
        update: The way in which the server applies a client update, or the updates of a round.
        schedule: The order in which clients train.
        paper_settings: The settings of the paper, None if no paper has any.

    Raises ValueError for choices that do not fit together.
    """

    paper: str = ""
    formula: str = ""
    when: str = ""
    variant_of: str = ""
    paper_settings: PaperSettings | None = None
    submodel: SubmodelPolicy = field(default_factory=Full)
    local: LocalTraining = field(default_factory=LocalTraining)
    update: AsyncRule | Mean = field(default_factory=Mean)
    schedule: Schedule = field(default_factory=Rounds)
    note: str = ""
    name: str = "own"

    def __post_init__(self) -> None:
        for axis, kinds in AXES.items():
            if not isinstance(given := getattr(self, axis), kinds):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise InputError(f"method.{axis}", got=given, expected=f"an object of {names}")
        update, schedule, policy = (type(each).__name__ for each in (self.update, self.schedule, self.submodel))
        if self.update.asynchronous != self.schedule.asynchronous:
            kind = "single client updates" if self.update.asynchronous else "rounds"
            raise InputError("method", f"{self.name} has the update {update}, which takes {kind}, and {schedule}")
        if self.submodel.scheduled > self.schedule.scheduled:
            raise InputError("method", f"{self.name} has {policy}, which needs a scheduler, and {schedule}")
        if self.schedule.scheduled and not (self.submodel.scheduled or self.submodel.whole):
            problem = f"{self.name} has {schedule}, which gives out fragments, and {policy}, which draws submodels"
            raise InputError("method", problem)

    def __str__(self) -> str:
        return self.name

    @property
    def keeps(self) -> str:
        """The state that the method keeps at the server besides the model: d parameters, N clients, M fragments."""
        parts = (getattr(self.update, f.name) for f in fields(self.update)) if is_dataclass(self.update) else ()
        kept = [getattr(choice, "keeps", "") for choice in (self.submodel, self.update, *parts)]
        return ", ".join(filter(None, [*kept, "mean [d]" if self.schedule.average else ""]))

    def choices(self) -> dict[str, object]:
        """Return the four choices by name."""
        return {axis: getattr(self, axis) for axis in AXES}

    def described(self) -> dict[str, Any]:
        """Return the choices with all their values, in the form of config.json."""
        return {axis: describe(choice) for axis, choice in self.choices().items()}

    @property
    def cuts(self) -> bool:
        """True if the method needs width groups: for submodels, or for the output layer, which has a row per label."""
        return self.submodel.cuts or bool(getattr(self.update, "owned_head", False))

    @property
    def asynchronous(self) -> bool:
        return self.schedule.asynchronous

    def replace(self, **flags: Any) -> "Method":
        """Return the method with these flags of an experiment in place, such as `scheduler=...` or `mixing=0.3`.

        Raises ValueError for a flag that none of its choices has.
        """
        return self.replaced(flags, self.name)

    def replaced(self, flags: Mapping[str, Any], name: str) -> "Method":
        """Return the method with these flags in place; `name` is the method's name in errors."""
        method = self
        for flag in FLAGS:
            if flag in flags:
                value = SEAMS[flag].resolve(flags[flag]) if flag in SEAMS else flags[flag]
                path = method.path(flag)
                if path is None:
                    given = text_of(flags[flag]) if flag in SEAMS else flags[flag]
                    hint = method._instead(flag, flags[flag])
                    raise InputError(flag, f"{name} has no such setting", got=given, hint=hint)
                method = _replaced(method, path.split("."), value)
        if unknown := flags.keys() - FLAGS.keys():
            raise InputError(min(unknown), "it is no setting of a method", expected=", ".join(FLAGS))
        return method

    def _instead(self, flag: str, value: object) -> str:
        """Return a hint about a flag that the method does not have."""
        if flag == "scheduler" and str(value).lower() in SCHEDULER.hints:
            return SCHEDULER.hints[str(value).lower()]
        steps, other = ("updates", "rounds") if self.asynchronous else ("rounds", "updates")
        return f"{self.name} counts {steps}: --{steps} {value}" if flag == other else "leave it out"

    def path(self, flag: str) -> str | None:
        """Return the path of the value that the flag replaces, or None if the method has no such value."""
        if (flag == "async_rule" and not self.asynchronous) or (flag == "submodel" and self.schedule.scheduled):
            return None
        for path in FLAGS[flag]:
            value: Any = self
            for name in path.split("."):
                own = {each.name for each in fields(value)} if is_dataclass(value) else ()
                value = getattr(value, name) if name in own else _MISSING
            if value is not _MISSING:
                return path
        return None


def _replaced(value: Any, path: list[str], new: object) -> Any:
    name, *rest = path
    return replace(value, **{name: _replaced(getattr(value, name), rest, new) if rest else new})
