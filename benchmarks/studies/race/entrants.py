"""Who runs, and what is tuned of each: the learning rate and the length of a task for all, one or two values more."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.studies.race.settings import Setting
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths
from fedraa.settings.resolve import resolve

OURS, ROUNDS, LIMIT, LENT = "fed-quilt", "fedavg", "limit", "-lent"
_STEP, _MIX, _SIZES = "0.5:2:log", "0.3:0.9", [3, 5, 10]
_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)


def _even(count: int) -> tuple[float, ...]:
    return (1 / count,) * count


@dataclass(frozen=True)
class Entrant:
    """A method of the table, or the limit; `knobs` are its own values that are tuned, as `fedraa tune` takes them.

    NAME-lent is NAME with those parts of ours that any method can have.
    """

    name: str
    knobs: Mapping[str, object]

    def method(self) -> str:
        return ROUNDS if self.name == LIMIT else self.name.removesuffix(LENT)

    def fields(self, setting: Setting) -> dict[str, Any]:
        """Of the experiment in this setting: the setting's; the limit is one client that has all data and devices."""
        fields = dict(setting.fields) | {"method": self.method()}
        if self.name.endswith(LENT):
            fields |= split_paths(parts_of_ours(setting), {})
        if self.name != LIMIT:
            return fields
        fields |= {"clients": 1, "partition": None, "compute": f"{setting.compute:g}:1", "duration_jitter": 0.0}
        return fields | {"polyak_fraction": 0.1, **setting.alone}

    def refusal(self, setting: Setting) -> str | None:
        """Why the method cannot be run on what this setting learns, or on its model; None if it can."""
        if self.method() in setting.without:
            return setting.without[self.method()]
        try:
            _resolved(self.method(), setting)
        except ValueError as error:
            return str(error)
        return None

    def space(self, setting: Setting) -> dict[str, object]:
        """What is tuned of it; our own tells its steps with auto, which also counts what sending takes."""
        lengths = [f"auto:{length}" for length in setting.lengths] if self.name == OURS else list(setting.lengths)
        own = {name: _scaled(values, setting) for name, values in self.knobs.items()}
        return {"lr": setting.lr, "local_steps": lengths, **own}


def _scaled(values: object, setting: Setting) -> object:
    """What depends on the setting's horizon or its number of clients."""
    return values.of(setting) if isinstance(values, Growth | EveryArrival) else values


@dataclass(frozen=True)
class Growth:
    """Until when FedGMR's submodels grow, as shares of the horizon."""

    until: tuple[float, ...]

    def of(self, setting: Setting) -> list[str]:
        return [f"growing(until={share * setting.horizon:g})" for share in self.until]


@dataclass(frozen=True)
class EveryArrival:
    """Server steps of who takes one at every arrival, N where a round takes one: these bounds over the N clients."""

    low: float
    high: float

    def of(self, setting: Setting) -> str:
        return f"{self.low / setting.clients:g}:{self.high / setting.clients:g}:log"


_RATIOS = [(1.0,), (0.4, 0.6), (0.2, 0.3, 0.5), (0.1, 0.2, 0.3, 0.4)]  # Table 4 of the Fed-RAA paper
_RAA: dict[str, object] = {"ratios": _RATIOS, "mixing": _MIX}
_ADAPTIVE = "fadas(size=3, optimizer='amsgrad(server_lr=0.03)')"
_RULES = ["delta(server_gain=1.2)", "delta(server_gain=1.7)", "rms-normalized-delta(server_gain=1.2)", _ADAPTIVE]
_ARRIVAL = EveryArrival(2.5, 10)  # .25 to 1 with ten clients: as wide as the others'
_CAPACITIES: list[object] = ["auto", _SHARES]

# The first ones, up to the limit, are run before the others.
FIRST: tuple[Entrant, ...] = (
    # Six were first at lower accuracies, and ended lower than FedAvg: the model is then a mean of thin ones.
    Entrant(OURS, {"ratios": [_even(2), _even(3), _even(4)], "async_rule": _RULES}),
    Entrant(ROUNDS, {"server_lr": _STEP}),
    Entrant("fedbuff", {"buffer_size": _SIZES, "server_lr": _STEP}),
    Entrant("fedasync", {"mixing": _MIX, "staleness": ["constant", "polynomial"]}),
    Entrant("fed-raa", _RAA),
    Entrant("fedrolex", {"capacities": _CAPACITIES, "server_lr": _STEP}),
    Entrant("ist", {"server_lr": _STEP}),
    Entrant(LIMIT, {"momentum": [0.0, 0.5, 0.9]}),
)
OTHERS: tuple[Entrant, ...] = (
    Entrant("ca2fl", {"buffer_size": _SIZES, "server_lr": _STEP}),
    Entrant("ace", {"server_lr": _ARRIVAL}),
    Entrant("ringmaster", {"update.delay_limit": [5, 10, 20], "server_lr": _ARRIVAL}),
    Entrant("delay-adaptive", {"server_lr": _ARRIVAL}),
    Entrant("fadas", {"buffer_size": _SIZES, "server_lr": "0.0003:0.03:log"}),
    Entrant("asyncfeded", {"server_lr": _ARRIVAL}),
    Entrant("ringleader", {"server_lr": _ARRIVAL}),
    Entrant("fedgmr", {"buffer_size": [1, 3, 10], "submodel": Growth((0.1, 0.3, 1.0))}),
    Entrant("heterofl-async", {"mixing": _MIX, "capacities": _CAPACITIES}),
    Entrant("fedrolex-async", {"mixing": _MIX, "capacities": _CAPACITIES}),
    Entrant("bernoulli-async", {"mixing": _MIX, "capacities": _CAPACITIES}),
    Entrant("fed-raa-random", _RAA),
    Entrant("fed-raa-mp", _RAA),
    Entrant("fed-raa-offline", _RAA),
)
ENTRANTS: dict[str, Entrant] = {entrant.name: entrant for entrant in (*FIRST, *OTHERS)}
# Run if asked for: are these parts of ours, which any method can have, all that makes it fast?
LENT_TO: dict[str, Entrant] = {
    name + LENT: Entrant(name + LENT, entrant.knobs) for name, entrant in ENTRANTS.items() if name not in (OURS, LIMIT)
}
KNOWN = ENTRANTS | LENT_TO


def parts_of_ours(setting: Setting) -> dict[str, float]:
    """Return the values of our method that any method takes. Only classification has calibrated logits."""
    ours = _resolved(OURS, setting)
    return {
        "clip": ours.local.clip,
        "local.logit_calibration": ours.local.logit_calibration,
        "polyak_fraction": ours.schedule.polyak_fraction,
    }


def _resolved(method: str, setting: Setting) -> Method:
    """With the setting's objective; ValueError if the method cannot be had for it."""
    return resolve(Experiment(method=method, objective=setting.fields.get("objective", "classification")))
