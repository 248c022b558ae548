"""The table of named methods: each one a composition of four choices.

`a+b` is the submodels of a with the local solver and server update of b (SubDisMO, Table 1).
"""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from fedraa.aggregation.registry import Covered, Filled, FLoRA, HetLoRA, Memorised
from fedraa.client.local_optimizer import SGD, Adam, AdamW
from fedraa.client.local_training import Solver
from fedraa.components import imported, is_path, rebuild
from fedraa.composition.compatibility import cross
from fedraa.composition.method import Method
from fedraa.errors import short_text
from fedraa.server.async_rule import Buffer, StalenessMix
from fedraa.server.delta_mix import DeltaMix
from fedraa.server.optimizers import Adaptive, AmsGrad, Momentum, Sgd
from fedraa.server.rivals import ACE, CA2FL, AsyncFedED, Fadas, FedGMR, Ringleader, Ringmaster
from fedraa.server.round_state import (
    AUXILIARIES,
    Adversaries,
    ControlVariates,
    FrozenMomentum,
    GlobalMomentum,
)
from fedraa.server.round_update import Mean, SyncMix
from fedraa.server.schedule import Asynchronous, Drawn, Rounds, ScheduledRounds
from fedraa.submodels.policies import SUBMODEL
from fedraa.submodels.policies.growing import Growing
from fedraa.submodels.policies.masked import FourWay, Pruned
from fedraa.submodels.policies.policy import Capacities
from fedraa.submodels.policies.pruning import AdaptivePruning
from fedraa.submodels.policies.regions import Arbitrary
from fedraa.submodels.policies.shuffled import Bernoulli, ShuffledBlocks
from fedraa.submodels.policies.slices import DisjointGroups, Fragments, LayerCut, Prefix, Rolling

# Table 4 of the Fed-RAA paper: shares of hidden neurons for M = 2..5 fragments.
RATIOS = {
    1: (1.0,),
    2: (0.4, 0.6),
    3: (0.2, 0.3, 0.5),
    4: (0.1, 0.2, 0.3, 0.4),
    5: (0.05, 0.1, 0.2, 0.3, 0.35),
}
DEFAULT_FRAGMENTS = 4

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
_UNITS = Arbitrary(regions="units")
_BETWEEN = "regions of units on both sides of a matrix, drawn per layer: far less than half of theta; no paper's"
_STALE = StalenessMix(staleness="polynomial")
_DRAWN = "a policy of rounds, mixed in as FedAsync does"
_OF_OURS = "no paper's: to tell what a barrier costs"
_SHUFFLED = "Shuffled submodels, Algorithm 2"
_RANDOM = "Shuffled submodels, Algorithm 1"

_METHODS: dict[str, Method] = {
    "fed-raa": _RAA,
    "fed-raa-random": replace(_RAA, schedule=Asynchronous("random")),
    "fed-raa-mp": replace(_RAA, schedule=Asynchronous("minimum-priority")),
    "fed-raa-offline": replace(_RAA, schedule=Asynchronous("offline")),
    "fed-raa-sync": replace(_RAA, update=SyncMix(), schedule=ScheduledRounds()),
    "fed-quilt": Method(
        "fedraa",
        Fragments((0.25,) * DEFAULT_FRAGMENTS),
        Solver(steps="auto", full_rate=True, clip=2.0, calibrate=0.8),
        DeltaMix(),
        Asynchronous("least-sent", average=0.1),
        note="our own",
    ),
    "fedasync": Method(
        "Xie, Koyejo, Gupta 2019", local=Solver(proximal=0.005), update=StalenessMix(), schedule=Asynchronous()
    ),
    "fedbuff": Method("Nguyen et al. 2022", local=_PLAIN, update=Buffer(), schedule=Asynchronous()),
    "ca2fl": Method("Wang et al. 2024, Algorithm 2", local=_PLAIN, update=CA2FL(), schedule=Asynchronous()),
    "ace": Method(
        "Chang et al. 2025",
        local=_PLAIN,
        update=ACE(),
        schedule=Asynchronous(),
        note="no step before every client has reported; any number of local steps, the paper has one",
    ),
    "ringmaster": Method(
        "Maranjyan, Tyurin, Richtarik 2025, Algorithm 4",
        local=_PLAIN,
        update=Ringmaster(),
        schedule=Asynchronous(),
        note="for equal data: it ignores the slow, so unequal data make it biased; tasks are not stopped",
    ),
    "delay-adaptive": Method(
        "Koloskova, Stich, Jaggi 2022",
        local=_PLAIN,
        update=Buffer(size=1, staleness="delay-adaptive"),
        schedule=Asynchronous(),
        note="steps of N / max(N, staleness)",
    ),
    "fadas": Method(
        "Wang et al. 2024 (FADAS)",
        local=Solver(momentum=0.0, weight_decay=1e-4),
        update=Fadas(),
        schedule=Asynchronous(),
        note="AMSGrad without bias correction",
    ),
    "asyncfeded": Method(
        "Wang et al. 2022",
        local=_PLAIN,
        update=AsyncFedED(),
        schedule=Asynchronous(),
        note="its step alone: epochs stay as they are",
    ),
    "ringleader": Method(
        "Maranjyan, Richtarik 2026",
        local=_PLAIN,
        update=Ringleader(),
        schedule=Asynchronous(),
        note="any number of local steps, the paper has one",
    ),
    "fedavg": Method("McMahan et al. 2017", update=Mean("samples")),
    "fedprox": Method("Li et al. 2020", local=Solver(proximal=0.1), update=Mean("samples")),
    "scaffold": Method(
        "Karimireddy et al. 2020, option II",
        local=replace(_PLAIN, control=True),
        update=Mean(auxiliary=ControlVariates()),
    ),
    "fedavgm": Method("Hsu, Qi, Brown 2019", update=Mean("samples", optimizer=Momentum())),
    "fedadam": Method("Reddi et al. 2021", update=Mean(optimizer=Adaptive("adam"))),
    "fedyogi": Method("Reddi et al. 2021", update=Mean(optimizer=Adaptive("yogi"))),
    "fedadagrad": Method("Reddi et al. 2021", update=Mean(optimizer=Adaptive("adagrad"))),
    "fedrobust": Method(
        "Reisizadeh et al. 2020",
        local=replace(_PLAIN, adversary=True),
        update=Mean(auxiliary=Adversaries()),
        note="diagonal affine perturbation",
    ),
    "fedcm": Method("Xu et al. 2021", local=replace(_PLAIN, fresh=0.1), update=Mean(auxiliary=GlobalMomentum())),
    "mimelite": Method(
        "Karimireddy et al. 2021",
        local=replace(_PLAIN, fresh=0.1, full_gradient=True),
        update=Mean("samples", auxiliary=FrozenMomentum()),
    ),
    "fedsam": Method("FedSAM, Algorithm 1", local=replace(_PLAIN, sam=0.5)),
    "mofedsam": Method(
        "FedSAM, Algorithm 2", local=replace(_PLAIN, sam=0.5, fresh=0.1), update=Mean(auxiliary=GlobalMomentum())
    ),
    "prunefl": Method(
        "Jiang et al. 2022",
        AdaptivePruning(),
        _PLAIN,
        Mean("samples"),
        note="fixed density, as the papers that compare with it run it",
    ),
    "splitfed": Method("Thapa et al. 2022, V1", LayerCut(), Solver(split=LayerCut().at)),
    "ist": Method("Yuan et al. 2022", DisjointGroups()),
    "oap": Method("Zhou et al. 2024", Pruned(), note="true magnitude ranks; uncovered weights keep their value"),
    "heterofl": Method("Diao et al. 2021", Prefix(), _SLICED, Mean(owned_head=True)),
    "fedrolex": Method("Alam et al. 2022", Rolling(), replace(_SLICED, weight_decay=1e-3), Mean(owned_head=True)),
    "hetlora": Method(
        "Cho et al. 2024",
        Prefix(),
        update=Mean(aggregator=HetLoRA()),
        note="of models with adapters: fedraa.lora; ranks are not pruned",
    ),
    "flora": Method(
        "Wang et al. 2024 (FLoRA)",
        Prefix(),
        update=Mean("samples", aggregator=FLoRA()),
        note="of models with adapters: fedraa.lora(model, merge=True)",
    ),
    "fedgmr": Method(
        "arXiv 2512.05372", Growing(), _PLAIN, FedGMR(), Drawn(), note="fixed-time trigger, ranked by magnitude"
    ),
    "heterofl-async": Method(_DRAWN, Prefix(), _SLICED, _STALE, Drawn(), note=_OF_OURS),
    "fedrolex-async": Method(_DRAWN, Rolling(), replace(_SLICED, weight_decay=1e-3), _STALE, Drawn(), note=_OF_OURS),
    "bernoulli-async": Method(_DRAWN, Bernoulli(), _PLAIN, _STALE, Drawn(), note=_OF_OURS),
    "ra-fed": _RA_FED,
    "ram-fed": replace(_RA_FED, paper="RAM-Fed, Algorithm 2", update=Mean(aggregator=Memorised())),
    "ram-fed-mifa": replace(
        _RA_FED,
        paper="RAM-Fed, released code",
        update=Mean(aggregator=Memorised(mifa=True)),
        note="the mean of its released code, which is that of MIFA; masks as in the paper",
    ),
    "ra-fed-units": replace(_RA_FED, submodel=_UNITS, note=_BETWEEN),
    "ram-fed-units": replace(
        _RA_FED,
        paper="RAM-Fed, Algorithm 2",
        submodel=_UNITS,
        update=Mean(aggregator=Memorised()),
        note=_BETWEEN,
    ),
    "subdismo": Method("SubDisMO, Algorithm 1", FourWay(), replace(_PLAIN, sam=0.1)),
    "bernoulli": Method(_RANDOM, Bernoulli(), _PLAIN, Mean(aggregator=Filled())),
    "bernoulli-kernels": Method(_RANDOM, Bernoulli(kernels=True), _PLAIN, Mean(aggregator=Filled())),
    "shuffled": Method(_SHUFFLED, ShuffledBlocks(), _PLAIN, Mean(aggregator=Filled())),
    "shuffled-kernels": Method(_SHUFFLED, ShuffledBlocks(kernels=True), _PLAIN, Mean(aggregator=Filled())),
}

METHODS: dict[str, Method] = {name: replace(method, name=name) for name, method in _METHODS.items()}

# What a described method is made of, by the names of its classes.
KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        Method,
        *(Solver, SGD, Adam, AdamW),
        Capacities,
        *(Mean, SyncMix, StalenessMix, DeltaMix, Buffer, Covered, Filled, Memorised, HetLoRA, FLoRA),
        *(Sgd, Momentum, Adaptive, AmsGrad),
        *(ACE, CA2FL, AsyncFedED, Fadas, FedGMR, Ringleader, Ringmaster),
        *(Asynchronous, Drawn, Rounds, ScheduledRounds),
    )
}
KINDS.update(AUXILIARIES)
KINDS.update({made.__name__: made for made in SUBMODEL.builtin.values()})


def find(given: Any) -> Method:
    """The method of that name or import path, the crossing `a+b`, or the one given as an object or as it was written.

    ValueError says which there are.
    """
    if isinstance(given, Method):
        return given
    if not isinstance(given, str):
        method = rebuild("method", given, KINDS)
        if not isinstance(method, Method):
            raise ValueError(f"method: got {short_text(given)}; takes a name, a crossing a+b or a Method")
        return method
    base, _, other = given.partition("+")
    method = _named(base)
    return cross(given, method, _named(other)) if "+" in given else method


def _named(name: str) -> Method:
    """The method of the table, or the one that a module of the user's own has made, `package.module:NAME`."""
    if name in METHODS:
        return METHODS[name]
    if not is_path(name):
        close = get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        listed = ", ".join(METHODS)
        raise ValueError(f"method: there is no {name!r}; {hint}choose one of {listed}, or an own one as module:NAME")
    if not isinstance(found := imported("method", name), Method):
        raise ValueError(
            f"method: {name} is {short_text(found)}; takes a Method, as fedraa.method(...).replace(...) makes one"
        )
    return found
