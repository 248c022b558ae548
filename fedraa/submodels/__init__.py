"""The parts of a model that clients train: width groups of any module, dense cuts, index sets, masks, costs."""

from fedraa.submodels.cost import Cost
from fedraa.submodels.flat import drop_weights, flatten, load, trainable, twin, view
from fedraa.submodels.indices import (
    disjoint,
    fragments,
    owners,
    prefix,
    random_units,
    window,
)
from fedraa.submodels.masks import bernoulli, magnitude, random_parts
from fedraa.submodels.meter import measure
from fedraa.submodels.traced import Entry, Group, IndexSet, Traced
from fedraa.submodels.tracing.trace import trace

__all__ = [
    "Cost",
    "Entry",
    "Group",
    "IndexSet",
    "Traced",
    "bernoulli",
    "disjoint",
    "drop_weights",
    "flatten",
    "fragments",
    "load",
    "magnitude",
    "measure",
    "owners",
    "prefix",
    "random_parts",
    "random_units",
    "trace",
    "trainable",
    "twin",
    "view",
    "window",
]
