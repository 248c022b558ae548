"""The table of named methods: each one a composition of four choices.

A method is a value: which part a client trains, how, what the server does with it, and who trains when. The
flags of an experiment that concern one of the four replace the method's own value; a flag that no choice of
the method knows is refused.
"""

from dataclasses import dataclass, field, fields, replace

from fedraa.experiment import Experiment
from fedraa.local.solver import Solver

# Table 4 of the Fed-RAA paper: shares of hidden neurons for M = 2..5 fragments.
RATIOS = {
    1: (1.0,),
    2: (0.4, 0.6),
    3: (0.2, 0.3, 0.5),
    4: (0.1, 0.2, 0.3, 0.4),
    5: (0.05, 0.1, 0.2, 0.3, 0.35),
}
DEFAULT_FRAGMENTS = 4


@dataclass(frozen=True)
class Full:
    """Every client trains the full model."""


@dataclass(frozen=True)
class Fragments:
    """Fixed disjoint fragments of the width groups."""

    ratios: tuple[float, ...] = RATIOS[DEFAULT_FRAGMENTS]


@dataclass(frozen=True)
class StalenessMix:
    """theta <- (1 - a) theta + a theta_new with a = mixing * s(staleness)."""

    mixing: float = 0.6
    staleness: str = "constant"


@dataclass(frozen=True)
class Mean:
    """theta <- theta + server_lr * mean gain over the clients that cover a coordinate."""

    weights: str = "uniform"
    server_lr: float = 1.0


@dataclass(frozen=True)
class SyncMix:
    """theta <- (1 - mixing) theta + mixing * mean of a round's returns, per fragment."""

    mixing: float = 0.6


@dataclass(frozen=True)
class Asynchronous:
    """Idle clients are given work at once, by a scheduler."""

    scheduler: str = "gre-raa"
    delay_bound: float | None = None


@dataclass(frozen=True)
class Rounds:
    """All clients, with a barrier; `scheduler` picks fragments where there are any."""

    scheduler: str = "gre-raa"
    delay_bound: float | None = None


@dataclass(frozen=True)
class Method:
    """Four choices and where they come from."""

    paper: str
    submodel: Full | Fragments = Full()
    local: Solver = field(default_factory=Solver)
    update: StalenessMix | Mean | SyncMix = Mean()
    schedule: Asynchronous | Rounds = Rounds()

    @property
    def asynchronous(self) -> bool:
        return isinstance(self.schedule, Asynchronous)


_RAA = "Fed-RAA (seed 004)"
_FED_RAA = Method(_RAA, Fragments(), Solver(proximal=0.005), StalenessMix(), Asynchronous())

METHODS: dict[str, Method] = {
    "fed-raa": _FED_RAA,
    "fed-raa-random": replace(_FED_RAA, schedule=Asynchronous("random")),
    "fed-raa-mp": replace(_FED_RAA, schedule=Asynchronous("minimum-priority")),
    "fed-raa-offline": replace(_FED_RAA, schedule=Asynchronous("offline")),
    "fed-raa-sync": replace(_FED_RAA, update=SyncMix(), schedule=Rounds()),
    "fedasync": Method("Xie, Koyejo, Gupta 2019", Full(), Solver(proximal=0.005), StalenessMix(), Asynchronous()),
    "fedavg": Method("McMahan et al. 2017", update=Mean("samples")),
    "fedprox": Method("Li et al. 2020", local=Solver(proximal=0.1), update=Mean("samples")),
}

# The flags of an experiment that replace a value of one of the four choices.
_FLAGS = {
    "submodel": ("ratios",),
    "local": ("momentum", "proximal", "sam"),
    "update": ("mixing", "staleness", "server_lr"),
    "schedule": ("scheduler", "delay_bound", "updates", "rounds"),
}


def find(name: str) -> Method:
    """The method of that name; ValueError says which there are."""
    if name not in METHODS:
        raise ValueError(f"method: there is no {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


def resolve(experiment: Experiment) -> Method:
    """The experiment's method with the experiment's flags in place.

    Raises ValueError for a flag that none of the method's choices knows.
    """
    method = find(experiment.method)
    solver = replace(
        method.local,
        lr=experiment.lr,
        batch_size=experiment.batch_size,
        epochs=experiment.local_epochs,
        steps=experiment.local_steps,
    )
    method = replace(method, local=solver)
    for axis, flags in _given(experiment).items():
        choice = getattr(method, axis)
        for flag, value in flags.items():
            if not _knows(choice, flag):
                raise ValueError(
                    f"{flag}: {value} means nothing to {experiment.method}, whose {axis} is "
                    f"{type(choice).__name__}; leave it out"
                )
        known = {item.name for item in fields(choice)}
        method = replace(method, **{axis: replace(choice, **{flag: v for flag, v in flags.items() if flag in known})})
    return method


def without_foreign_flags(experiment: Experiment) -> Experiment:
    """The experiment less the flags that its method does not know, to compare methods under one command."""
    method = find(experiment.method)
    foreign = [
        flag for axis, flags in _given(experiment).items() for flag in flags if not _knows(getattr(method, axis), flag)
    ]
    drop = {name: None for flag in foreign for name in (("ratios", "fragments") if flag == "ratios" else (flag,))}
    return experiment.model_copy(update=drop)


def _given(experiment: Experiment) -> dict[str, dict[str, object]]:
    values = {flag: getattr(experiment, flag) for flags in _FLAGS.values() for flag in flags}
    values["ratios"] = _ratios(experiment)
    return {axis: {flag: values[flag] for flag in flags if values[flag] is not None} for axis, flags in _FLAGS.items()}


def _knows(choice: object, flag: str) -> bool:
    if flag in ("updates", "rounds"):
        return isinstance(choice, Asynchronous) == (flag == "updates")
    return any(known.name == flag for known in fields(choice))  # type: ignore[arg-type]  # a dataclass


def _ratios(experiment: Experiment) -> tuple[float, ...] | None:
    if experiment.ratios is not None or experiment.fragments is None:
        return experiment.ratios
    if experiment.fragments not in RATIOS:
        raise ValueError(
            f"fragments: there are no table ratios for {experiment.fragments} fragments, only for 1 to "
            f"{max(RATIOS)}; give --ratios"
        )
    return RATIOS[experiment.fragments]
