"""The entrants of the study `race`: methods, and centralised SGD as the upper bound, which is named `limit`.

The learning rate, the task length, and at most two more hyperparameters of each entrant are tuned. Fed-Quilt is not
tuned. It has only its defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.studies.race.settings import Setting
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths
from fedraa.settings.resolve import resolve_method

OURS, ROUNDS, LIMIT, LENT, SHORT = "fed-quilt", "fedavg", "limit", "-lent", "-short"
_STEP, _MIX, _SIZES = "0.5:2:log", "0.3:0.9", [3, 5, 10]
_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)


@dataclass(frozen=True)
class Entrant:
    """A method to compare. The entrant LIMIT is not a method but centralised SGD, the upper bound.

    `knobs` has the values to try for hyperparameters other than learning rate and task length. An entrant NAME-lent,
    such as fedavg-lent, is the method NAME with the settings that `lendable_settings` returns. An entrant NAME-short is
    the method NAME with tasks of one batch.
    """

    name: str
    knobs: Mapping[str, object]

    def method(self) -> str:
        if self.name == LIMIT:
            return ROUNDS
        return self.name.removesuffix(LENT).removesuffix(SHORT)

    def fields(self, setting: Setting) -> dict[str, Any]:
        """Return the fields of the entrant's experiment. LIMIT is one client with all data and all compute."""
        fields = dict(setting.fields) | {"method": self.method()}
        if self.name.endswith(LENT):
            fields |= split_paths(lendable_settings(setting), {})
        if self.name != LIMIT:
            return fields
        fields |= {"clients": 1, "partition": None, "compute": f"{setting.compute:g}:1", "duration_jitter": 0.0}
        return fields | {"polyak_fraction": 0.1, **setting.alone}

    def refusal_reason(self, setting: Setting) -> str | None:
        """Return why the method cannot run with the setting's model, devices or objective, or None."""
        if self.method() in setting.without:
            return setting.without[self.method()]
        try:
            _resolve_method(self.method(), setting)
        except ValueError as error:
            return str(error)
        return None

    def space(self, setting: Setting) -> dict[str, object]:
        """Return the hyperparameters to tune, with the values to try."""
        lengths = [1] if self.name.endswith(SHORT) else list(setting.lengths)
        own = {name: _scale_values(values, setting) for name, values in self.knobs.items()}
        return {"lr": setting.lr, "local_steps": lengths, **own}


def _scale_values(values: object, setting: Setting) -> object:
    """Return the values to try. A Growth or an EveryArrival is converted to the values of this setting."""
    if isinstance(values, Growth | EveryArrival):
        return values.of(setting)
    return values


@dataclass(frozen=True)
class Growth:
    """The times at which FedGMR's submodels stop growing, as fractions of the run's time limit."""

    until: tuple[float, ...]

    def of(self, setting: Setting) -> list[str]:
        return [f"growing(until={share * setting.horizon:g})" for share in self.until]


@dataclass(frozen=True)
class EveryArrival:
    """Server learning rates to try for methods with one server step per client update.

    The range is from `low` / clients to `high` / clients, because more clients mean more server steps.
    """

    low: float
    high: float

    def of(self, setting: Setting) -> str:
        return f"{self.low / setting.clients:g}:{self.high / setting.clients:g}:log"


# The fragment sizes of Table 4 of the Fed-RAA paper.
_RATIOS = [(1.0,), (0.4, 0.6), (0.2, 0.3, 0.5), (0.1, 0.2, 0.3, 0.4)]
_RAA: dict[str, object] = {"ratios": _RATIOS, "mixing": _MIX}
# These bounds are divided by the number of clients. With ten clients, server learning rates from 0.25 to 1 are tried.
_ARRIVAL = EveryArrival(2.5, 10)
_CAPACITIES: list[object] = ["auto", _SHARES]

FIRST: tuple[Entrant, ...] = (
    Entrant(OURS, {}),
    Entrant(ROUNDS, {"server_lr": _STEP}),
    Entrant("fedbuff", {"buffer_size": _SIZES, "server_lr": _STEP}),
    Entrant("fedasync", {"mixing": _MIX, "staleness": ["constant", "polynomial"]}),
    Entrant("fed-raa", _RAA),
    Entrant("fedrolex", {"capacities": _CAPACITIES, "server_lr": _STEP}),
    Entrant("ist", {"server_lr": _STEP}),
    Entrant(LIMIT, {"momentum": [0.0, 0.5, 0.9]}),
)
LATER: tuple[Entrant, ...] = (
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
    Entrant("area", {"buffer_size": _SIZES}),
    Entrant("mr-asyncfl", {"update.gamma": [0.5, 0.8, 0.95]}),
    Entrant("heloco", {"server_lr": _ARRIVAL}),
    Entrant("ringmaster-lmo", {"server_lr": "0.001:0.1:log"}),
    Entrant("generalized-asyncsgd", {"server_lr": _ARRIVAL}),
    Entrant("cgad", {"server_lr": "0.0003:0.03:log"}),
    Entrant("fedasmu", {"update.mu": "0.3:3:log"}),
    Entrant("delta-sgd", {"server_lr": _STEP}),
)
ENTRANTS: dict[str, Entrant] = {entrant.name: entrant for entrant in (*FIRST, *LATER)}
# Runs of these entrants show how much of Fed-Quilt's speed comes from settings that other methods can also have. They
# run only if `--methods` names them.
_OTHERS = {name: entrant.knobs for name, entrant in ENTRANTS.items() if name not in (OURS, LIMIT)}
LENT_TO: dict[str, Entrant] = {name + LENT: Entrant(name + LENT, knobs) for name, knobs in _OTHERS.items()}
SHORTENED: dict[str, Entrant] = {name + SHORT: Entrant(name + SHORT, knobs) for name, knobs in _OTHERS.items()}
KNOWN = ENTRANTS | LENT_TO | SHORTENED


def lendable_settings(setting: Setting) -> dict[str, float]:
    """Return the settings of Fed-Quilt that every method can have: clipping, calibrated logits, Polyak mean."""
    method = _resolve_method(OURS, setting)
    return {
        "clip": method.local.clip,
        "local.logit_calibration": method.local.logit_calibration,
        "polyak_fraction": method.schedule.polyak_fraction,
    }


def _resolve_method(method: str, setting: Setting) -> Method:
    """Return a method with the setting's objective. Raise ValueError if the method cannot have the objective."""
    return resolve_method(Experiment(method=method, objective=setting.fields.get("objective", "classification")))
