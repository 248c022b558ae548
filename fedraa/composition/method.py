"""A method: a choice of a submodel policy, of the local training, of the server's update and of the schedule."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from fedraa.arguments import check_texts
from fedraa.client.local_training import LocalTraining
from fedraa.components.text import describe_component
from fedraa.composition.overrides import find_path, set_values
from fedraa.errors import InputError
from fedraa.server.async_rule import AsyncRule
from fedraa.server.round_state import RoundState
from fedraa.server.round_update import Mean
from fedraa.server.schedule import Rounds, Schedule
from fedraa.submodels.policies.policy import SubmodelPolicy
from fedraa.submodels.policies.slices import Full

AXES: dict[str, tuple[type, ...]] = {
    "submodel": (SubmodelPolicy,),
    "local": (LocalTraining,),
    "update": (AsyncRule, Mean),
    "schedule": (Schedule,),
}


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """The settings with which a paper runs its method, for `--terms paper`.

    Attributes:
        source: The section, table or code that states the settings.
        values: The values by option of an experiment, such as `lr`, or by path, such as `local.sam_rho`.
        client_fraction: The fraction of clients that take part in a round; None if the paper does not state it.
        unstated: The settings that the paper does not state, as text.
    """

    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    client_fraction: float | None = None
    unstated: str = ""

    def fields(self, clients: int) -> dict[str, Any]:
        """Return the settings as experiment options for this number of clients."""
        if self.client_fraction is None:
            return dict(self.values)
        return {**self.values, "participation": f"sample:{max(1, round(self.client_fraction * clients))}"}


# Settings of several methods.
PLAIN_SGD = LocalTraining(momentum=0.0)
ONE_STEP_THEORY = PaperSettings(
    source="one local step, as in the paper's theory", values={"local_steps": 1, "momentum": 0.0}, unstated="rate"
)
NO_PAPER = PaperSettings(source="no paper")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: four choices (`submodel`, `local`, `update`, `schedule`), their paper, and advice for users.

    Attributes:
        name: The name under which the method is registered. A custom method is selected by its import path, and this
            name is only its title in `fedraa methods` and `fedraa check`.
        paper: The paper, with the number of the algorithm.
        formula: The server's step in one line.
        when: The situation in which the method is a good choice.
        note: The differences between this implementation and the paper.
        variant_of: The name of the method of which this method is a variant; empty for none.
        submodel: The part of the model that a client trains.
        local: The local training of a client.
        update: The way in which the server applies client updates.
        schedule: The order in which clients train.
        paper_settings: The settings of the paper; `NO_PAPER` if there is no paper. A custom method may have None.

    Raises:
        InputError: A value has the wrong type, or the choices do not fit together.
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
            choice = getattr(self, axis)
            if not isinstance(choice, kinds):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise InputError(f"method.{axis}", got=choice, expected=f"an object of {names}")
        texts = ("name", "paper", "formula", "when", "note", "variant_of")
        check_texts("method", **{name: getattr(self, name) for name in texts})
        if not isinstance(self.paper_settings, PaperSettings | None):
            expected = "a PaperSettings, or None"
            raise InputError("method.paper_settings", got=self.paper_settings, expected=expected)
        update = type(self.update).__name__
        schedule = type(self.schedule).__name__
        policy = type(self.submodel).__name__
        if self.update.asynchronous != self.schedule.asynchronous:
            kind, fitting = "rounds", "schedule=fedraa.method('fedavg').schedule"
            if self.update.asynchronous:
                kind, fitting = "single client updates", "schedule=fedraa.AsyncSchedule()"
            problem = f"{self.name} has the update {update}, which needs {kind}, but the schedule {schedule} has none"
            raise InputError(
                "method", problem, hint=f"give an update and a schedule of the same kind, such as {fitting}"
            )
        if self.submodel.scheduled > self.schedule.scheduled:
            problem = f"{self.name} has {policy}, which needs a scheduler, but {schedule} has none"
            raise InputError("method", problem, hint="give AsyncSchedule or ScheduledRounds")
        if self.schedule.scheduled and not (self.submodel.scheduled or self.submodel.whole):
            problem = f"{schedule} of {self.name} assigns fragments, but its {policy} samples submodels"
            raise InputError("method", problem, hint="give AsyncSampled or Rounds")

    def __str__(self) -> str:
        return self.name

    @property
    def keeps(self) -> str:
        """The server's state besides the model, as text, such as `mean [d]`.

        d is the number of parameters, N the number of clients, and M the number of fragments.
        """
        components: list[object] = [self.submodel, self.update]
        if is_dataclass(self.update):
            components += [getattr(self.update, item.name) for item in fields(self.update)]
        states = [getattr(component, "keeps", "") for component in components]
        for buffer in self.local.algorithm.kept:
            size = "d" if buffer.size is None else buffer.size
            states.append(f"{buffer.name} [N, {size}]")
        if self.local.adversary:
            states.append("Lambda_n, delta_n [N, 2 inputs]")
        if self.local.personal_layers:
            states.append("personal layers [N, their size]")
        if self.schedule.polyak_fraction:
            states.append("mean [d]")
        return ", ".join(filter(None, states))

    def choices(self) -> dict[str, object]:
        return {axis: getattr(self, axis) for axis in AXES}

    def described(self) -> dict[str, Any]:
        """Return the submodel, local, update and schedule with all their values, as config.json stores them."""
        return {axis: describe_component(choice) for axis, choice in self.choices().items()}

    @property
    def auxiliary(self) -> RoundState | None:
        """The server's state besides the model, such as control variates; None for an asynchronous method."""
        return getattr(self.update, "auxiliary", None)

    @property
    def aggregator(self) -> Any:
        """The aggregator, as a name or an object; None if the server's update has none."""
        return getattr(self.update, "aggregator", None)

    @property
    def owned_head(self) -> bool:
        """True if the server averages an output row only over the clients that hold its label."""
        return bool(getattr(self.update, "owned_head", False))

    @property
    def cuts(self) -> bool:
        """True if the method must know which units of the model's layers can be removed together."""
        return self.submodel.cuts or self.owned_head

    @property
    def scales_activations(self) -> bool:
        """True if training divides a submodel's activations by the fraction of the units that the submodel has."""
        return self.local.scale_activations or self.local.full_rate or self.submodel.scales

    @property
    def asynchronous(self) -> bool:
        return self.schedule.asynchronous

    def replace(self, **values: Any) -> "Method":
        """Return a copy of the method with other values.

        Args:
            values: The new values. A name is an option of an experiment, such as `mixing=0.3`, or a path, such as
                `**{"local.sam_rho": 0.05}`.

        Raises:
            InputError: The method has no such value.
        """
        return set_values(self, values, self.name)

    def path(self, name: str) -> str | None:
        """Return the path of the value that an option sets, such as `local.sam_rho`; None if there is no such value."""
        return find_path(self, name)
