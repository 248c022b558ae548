"""The table of named methods: each one a composition of four choices.

A method is a value: which part a client trains, how, what the server does with it, and who trains when. The
flags of an experiment that concern one of the four replace the method's own value; a flag that no choice of
the method knows is refused. `a+b` is the submodels of a with the local solver and server update of b
(SubDisMO, Table 1).
"""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from fedraa.client.solver import Solver
from fedraa.config.experiment import Experiment
from fedraa.server.aggregation.aggregate import Covered, Filled, Memorised
from fedraa.server.async_rules import Buffer, StalenessMix
from fedraa.server.auxiliary.pruning import AdaptivePruning
from fedraa.server.auxiliary.state import Carry
from fedraa.server.optimizers import Adaptive, Momentum, Sgd
from fedraa.submodels.policies.masked import Arbitrary, FourWay, Pruned
from fedraa.submodels.policies.policies import (
    Bernoulli,
    DisjointGroups,
    Fragments,
    Full,
    LayerCut,
    Prefix,
    Rolling,
    ShuffledBlocks,
)

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
class SyncMix:
    """theta <- (1 - mixing) theta + mixing * mean of a round's returns, per fragment (Sync Fed-RAA)."""

    mixing: float = 0.6


@dataclass(frozen=True)
class Mean:
    """A step along a round's mean gain: how it is averaged, how the step is taken, what rides along.

    `owned_head`: output rows are averaged over the clients that hold their label alone (HeteroFL).
    """

    weights: str = "uniform"
    aggregator: Covered | Filled | Memorised = field(default_factory=Covered)
    optimizer: Sgd | Momentum | Adaptive = field(default_factory=Sgd)
    carry: Carry = field(default_factory=Carry)
    owned_head: bool = False


@dataclass(frozen=True)
class Asynchronous:
    """Idle clients are given work at once, by a scheduler."""

    scheduler: str = "gre-raa"
    delay_bound: float | None = None
    updates: int | None = None


@dataclass(frozen=True)
class Rounds:
    """Rounds with a barrier: who takes part."""

    participation: str = "all"
    rounds: int | None = None


@dataclass(frozen=True)
class ScheduledRounds:
    """Rounds with a barrier, fragments given out by a scheduler."""

    scheduler: str = "gre-raa"
    delay_bound: float | None = None
    rounds: int | None = None


Policy = (
    Full
    | Fragments
    | Prefix
    | Rolling
    | DisjointGroups
    | Bernoulli
    | ShuffledBlocks
    | FourWay
    | Arbitrary
    | Pruned
    | LayerCut
    | AdaptivePruning
)


@dataclass(frozen=True)
class Method:
    """Four choices, where they come from, and what is particular about them here."""

    paper: str
    submodel: Policy = field(default_factory=Full)
    local: Solver = field(default_factory=Solver)
    update: StalenessMix | Buffer | Mean | SyncMix = Mean()
    schedule: Asynchronous | Rounds | ScheduledRounds = Rounds()
    note: str = ""

    @property
    def keeps(self) -> str:
        """The state that the method keeps at the server besides the model: d parameters, N clients, M fragments."""
        update = self.update
        choices = (self.submodel, update, *(getattr(update, f.name) for f in fields(update)))
        return ", ".join(kept for choice in choices if (kept := getattr(choice, "keeps", "")))

    @property
    def asynchronous(self) -> bool:
        return isinstance(self.schedule, Asynchronous)


_PLAIN = Solver(momentum=0.0)  # terms that divide by lr * steps, or keep a momentum of their own
_RAA = Method(
    "Fed-RAA, Algorithm 1",
    Fragments(RATIOS[DEFAULT_FRAGMENTS]),
    Solver(proximal=0.005),
    StalenessMix(),
    Asynchronous(),
)
_SLICED = Solver(momentum=0.9, weight_decay=5e-4, clip=1.0, label_masked=True)
_RA_FED = Method("RAM-Fed, Algorithm 1", Arbitrary())
_SHUFFLED = "Shuffled submodels, Algorithm 2"
_RANDOM = "Shuffled submodels, Algorithm 1"

METHODS: dict[str, Method] = {
    "fed-raa": _RAA,
    "fed-raa-random": replace(_RAA, schedule=Asynchronous("random")),
    "fed-raa-mp": replace(_RAA, schedule=Asynchronous("minimum-priority")),
    "fed-raa-offline": replace(_RAA, schedule=Asynchronous("offline")),
    "fed-raa-sync": replace(_RAA, update=SyncMix(), schedule=ScheduledRounds()),
    "fedasync": Method(
        "Xie, Koyejo, Gupta 2019", local=Solver(proximal=0.005), update=StalenessMix(), schedule=Asynchronous()
    ),
    "fedbuff": Method("Nguyen et al. 2022", update=Buffer(), schedule=Asynchronous()),
    "fedavg": Method("McMahan et al. 2017", update=Mean("samples")),
    "fedprox": Method("Li et al. 2020", local=Solver(proximal=0.1), update=Mean("samples")),
    "scaffold": Method(
        "Karimireddy et al. 2020, option II", local=replace(_PLAIN, control=True), update=Mean(carry=Carry("control"))
    ),
    "fedavgm": Method("Hsu, Qi, Brown 2019", update=Mean("samples", optimizer=Momentum())),
    "fedadam": Method("Reddi et al. 2021", update=Mean(optimizer=Adaptive("adam"))),
    "fedyogi": Method("Reddi et al. 2021", update=Mean(optimizer=Adaptive("yogi"))),
    "fedadagrad": Method("Reddi et al. 2021", update=Mean(optimizer=Adaptive("adagrad"))),
    "fedrobust": Method(
        "Reisizadeh et al. 2020",
        local=replace(_PLAIN, adversary=True),
        update=Mean(carry=Carry("adversary")),
        note="diagonal affine perturbation",
    ),
    "fedcm": Method("Xu et al. 2021", local=replace(_PLAIN, fresh=0.1), update=Mean(carry=Carry("momentum"))),
    "mimelite": Method(
        "Karimireddy et al. 2021",
        local=replace(_PLAIN, fresh=0.1, full_gradient=True),
        update=Mean("samples", carry=Carry("frozen-momentum")),
    ),
    "fedsam": Method("FedSAM, Algorithm 1", local=replace(_PLAIN, sam=0.5)),
    "mofedsam": Method(
        "FedSAM, Algorithm 2", local=replace(_PLAIN, sam=0.5, fresh=0.1), update=Mean(carry=Carry("momentum"))
    ),
    "prunefl": Method(
        "Jiang et al. 2022",
        AdaptivePruning(),
        Solver(momentum=0.0, squares=True),
        Mean("samples"),
        note="fixed density, as the papers that compare with it run it",
    ),
    "splitfed": Method("Thapa et al. 2022, V1", LayerCut(), Solver(split=LayerCut().at)),
    "ist": Method("Yuan et al. 2022", DisjointGroups()),
    "oap": Method("Zhou et al. 2024", Pruned(), note="true magnitude ranks; uncovered weights keep their value"),
    "heterofl": Method("Diao et al. 2021", Prefix(), _SLICED, Mean(owned_head=True)),
    "fedrolex": Method("Alam et al. 2022", Rolling(), replace(_SLICED, weight_decay=1e-3), Mean(owned_head=True)),
    "ra-fed": _RA_FED,
    "ram-fed": replace(_RA_FED, paper="RAM-Fed, Algorithm 2", update=Mean(aggregator=Memorised())),
    "ram-fed-mifa": replace(
        _RA_FED, paper="RAM-Fed, released code", update=Mean(aggregator=Memorised(mifa=True)), note="MIFA's mean"
    ),
    "subdismo": Method("SubDisMO, Algorithm 1", FourWay(), replace(_PLAIN, sam=0.1)),
    "bernoulli": Method(_RANDOM, Bernoulli(), _PLAIN, Mean(aggregator=Filled())),
    "bernoulli-kernels": Method(_RANDOM, Bernoulli(kernels=True), _PLAIN, Mean(aggregator=Filled())),
    "shuffled": Method(_SHUFFLED, ShuffledBlocks(), _PLAIN, Mean(aggregator=Filled())),
    "shuffled-kernels": Method(_SHUFFLED, ShuffledBlocks(kernels=True), _PLAIN, Mean(aggregator=Filled())),
}

# Which flag of an experiment replaces which value: the first of the paths that the method has.
_FLAGS: dict[str, tuple[str, ...]] = {
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
    "momentum": ("local.momentum",),
    "weight_decay": ("local.weight_decay",),
    "clip": ("local.clip",),
    "proximal": ("local.proximal",),
    "sam": ("local.sam",),
    "fresh": ("local.fresh",),
    "mixing": ("update.mixing",),
    "staleness": ("update.staleness",),
    "buffer_size": ("update.size",),
    "server_lr": ("update.optimizer.server_lr", "update.server_lr"),
    "scheduler": ("schedule.scheduler",),
    "delay_bound": ("schedule.delay_bound",),
    "participation": ("schedule.participation",),
    "updates": ("schedule.updates",),
    "rounds": ("schedule.rounds",),
}


def find(name: str) -> Method:
    """The method of that name, or the crossing `a+b`; ValueError says which there are."""
    base, _, cross = name.partition("+")
    for part in (base, *([cross] if "+" in name else [])):
        if part not in METHODS:
            raise ValueError(f"method: there is no {part!r}; choose one of {', '.join(METHODS)}")
    return METHODS[base] if not cross else _cross(name, METHODS[base], METHODS[cross])


def _cross(name: str, base: Method, cross: Method) -> Method:
    """The submodels and the coverage of one method, the local solver and the server's step of another."""
    if not (isinstance(base.update, Mean) and isinstance(cross.update, Mean)):
        raise ValueError(f"method: {name!r} crosses a method without rounds and their mean; only those can be crossed")
    if cross.submodel != Full() or base.submodel == Full():
        raise ValueError(f"method: {name!r} must be a submodel method + a full-model one, like oap+scaffold")
    if isinstance(base.update.aggregator, Memorised) and cross.update.carry.kind == "control":
        raise ValueError(f"method: {name!r} would correct every gain twice, by memory and by control variate")
    local = replace(
        cross.local, squares=base.local.squares, label_masked=base.local.label_masked, split=base.local.split
    )
    update = replace(base.update, optimizer=cross.update.optimizer, carry=cross.update.carry)
    return replace(base, paper=f"{base.paper} + {cross.paper}", local=local, update=update)


def resolve(experiment: Experiment) -> Method:
    """The experiment's method with the experiment's flags in place.

    Raises ValueError for a flag that none of the method's choices knows, and for terms that break each other.
    """
    method = find(experiment.method)
    solver = replace(
        method.local,
        lr=experiment.lr,
        lr_schedule=experiment.lr_schedule,
        batch_size=experiment.batch_size,
        epochs=experiment.local_epochs,
        steps=experiment.local_steps,
        compress=experiment.compress,
    )
    method = replace(method, local=solver)
    for flag, value in _given(experiment).items():
        path = _path(method, flag)
        if path is None:
            instead = _instead(experiment.method, method, flag, value)
            raise ValueError(f"{flag}: {value} means nothing to {experiment.method}; {instead}")
        method = _replaced(method, path.split("."), value)
    if isinstance(method.submodel, LayerCut):
        method = replace(method, local=replace(method.local, split=method.submodel.at))
    _check(experiment.method, method)
    if experiment.server_shards > 1:
        _check_shards(experiment, method)
    return method


def _instead(name: str, method: Method, flag: str, value: object) -> str:
    """What to do about a flag that the method does not know."""
    steps = "updates" if method.asynchronous else "rounds"
    given = {"updates", "rounds"} - {steps}
    return f"{name} counts {steps}: --{steps} {value}" if flag in given else "leave it out"


def without_foreign_flags(experiment: Experiment) -> Experiment:
    """The experiment less the flags that its method does not know, to compare methods under one command."""
    method = find(experiment.method)
    foreign = {flag for flag in _given(experiment) if _path(method, flag) is None}
    if "ratios" in foreign:
        foreign.add("fragments")
    shards = experiment.server_shards if _can_be_spread(method) else 1
    return experiment.model_copy(update={**dict.fromkeys(foreign), "server_shards": shards})


def _can_be_spread(method: Method) -> bool:
    """Whether the server's parameters can lie on several actors: each takes in its share of an update by itself."""
    return method.asynchronous and isinstance(method.update, StalenessMix) and isinstance(method.submodel, Fragments)


def _check_shards(experiment: Experiment, method: Method) -> None:
    name, shards = experiment.method, experiment.server_shards
    if not _can_be_spread(method):
        raise ValueError(
            f"server_shards: {shards} means nothing to {name}; only fragments that are mixed in one by one, like those "
            "of fed-raa, can be spread; leave it out"
        )
    assert isinstance(method.submodel, Fragments)
    if shards > (count := len(method.submodel.ratios)):
        raise ValueError(f"server_shards: got {shards}; {name} has {count} fragments here, give at most as many")


def _check(name: str, method: Method) -> None:
    """Refuses pairs that break each other's mathematics (ALGORITHMS section 6, trap 9)."""
    local = method.local
    carry = method.update.carry.kind if isinstance(method.update, Mean) else ""
    if local.fresh < 1 and carry not in ("momentum", "frozen-momentum"):
        raise ValueError(f"fresh: {local.fresh:g} means nothing to {name}: its server keeps no momentum; leave it out")
    control = "the control variate takes a gain over lr * steps for a mean gradient, as it is in plain SGD alone"
    reasons = {
        ("control", "momentum"): control,
        ("control", "clip"): control,
        ("control", "compress"): "the control variate would take every entry that topk drops for a gradient of 0",
        ("momentum", "momentum"): "the server momentum is a gain over lr * steps, which it inflates anew every round",
        ("frozen-momentum", "momentum"): "clients step along the server's momentum, which a task leaves as it is",
    }
    given = {"momentum": local.momentum, "clip": local.clip, "compress": local.compress.startswith("topk")}
    for (kind, flag), reason in reasons.items():
        if kind == carry and given[flag]:
            value, off = (local.compress, "none") if flag == "compress" else (f"{given[flag]:g}", "0")
            raise ValueError(f"{flag}: {value} breaks {name}: {reason}; set it to {off}")


def _given(experiment: Experiment) -> dict[str, Any]:
    """The experiment's flags that were given, by name."""
    values = {flag: getattr(experiment, flag) for flag in _FLAGS} | {"ratios": _ratios(experiment)}
    return {flag: value for flag, value in values.items() if value is not None}


def _path(method: Method, flag: str) -> str | None:
    for path in _FLAGS[flag]:
        value: Any = method
        for name in path.split("."):
            value = getattr(value, name, _MISSING) if is_dataclass(value) else _MISSING
        if value is not _MISSING:
            return path
    return None


_MISSING = object()


def _replaced(value: Any, path: list[str], new: object) -> Any:
    name, *rest = path
    return replace(value, **{name: _replaced(getattr(value, name), rest, new) if rest else new})


def _ratios(experiment: Experiment) -> tuple[float, ...] | None:
    if experiment.ratios is not None or experiment.fragments is None:
        return experiment.ratios
    if experiment.fragments not in RATIOS:
        raise ValueError(
            f"fragments: there are no table ratios for {experiment.fragments} fragments, only for 1 to "
            f"{max(RATIOS)}; give --ratios"
        )
    return RATIOS[experiment.fragments]
