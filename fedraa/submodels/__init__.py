"""The submodels that clients train.

- A width group is a set of units (neurons, channels, attention heads) that can be cut from a module.
- An index set chooses units of every width group.
- A cut is a smaller dense module with the chosen units.
- A mask chooses single parameters, not units.
"""

from fedraa.submodels.cost import Cost
from fedraa.submodels.flat import (
    copy_structure,
    drop_weights,
    flatten_parameters,
    load_parameters,
    trainable_parameters,
    view_as_tensor,
)
from fedraa.submodels.indices import (
    count_owners,
    deal_disjoint,
    make_fragments,
    random_units,
    take_prefix,
    take_window,
)
from fedraa.submodels.masks import draw_bernoulli, random_parts
from fedraa.submodels.meter import measure_cost
from fedraa.submodels.traced import Entry, Group, IndexSet, Traced
from fedraa.submodels.tracing.trace import trace_module

__all__ = [
    "Cost",
    "Entry",
    "Group",
    "IndexSet",
    "Traced",
    "copy_structure",
    "count_owners",
    "deal_disjoint",
    "draw_bernoulli",
    "drop_weights",
    "flatten_parameters",
    "load_parameters",
    "make_fragments",
    "measure_cost",
    "random_parts",
    "random_units",
    "take_prefix",
    "take_window",
    "trace_module",
    "trainable_parameters",
    "view_as_tensor",
]
