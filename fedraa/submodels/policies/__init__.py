"""Policies. A policy chooses the submodel that each client trains."""

from fedraa.components.registry import ComponentRegistry
from fedraa.submodels.policies.growing import Growing
from fedraa.submodels.policies.last_layers import LastLayers
from fedraa.submodels.policies.masked import FourWay, Pruned
from fedraa.submodels.policies.policy import SubmodelPolicy
from fedraa.submodels.policies.pruning import AdaptivePruning
from fedraa.submodels.policies.regions import Arbitrary, RegionSchedule
from fedraa.submodels.policies.shuffled import Bernoulli, ShuffledBlocks
from fedraa.submodels.policies.slices import DisjointGroups, Fragments, Full, LayerCut, Prefix, Rolling

SUBMODEL: ComponentRegistry[SubmodelPolicy] = ComponentRegistry(
    "submodel",
    ("bind", "submodels"),
    {
        "full": Full,
        "fragments": Fragments,
        "prefix": Prefix,
        "rolling": Rolling,
        "disjoint-groups": DisjointGroups,
        "bernoulli": Bernoulli,
        "shuffled-blocks": ShuffledBlocks,
        "four-way": FourWay,
        "arbitrary": Arbitrary,
        "region-schedule": RegionSchedule,
        "pruned": Pruned,
        "adaptive-pruning": AdaptivePruning,
        "growing": Growing,
        "layer-cut": LayerCut,
        "last-layers": LastLayers,
    },
    base="SubmodelPolicy",
)

__all__ = ["SUBMODEL", "SubmodelPolicy"]
