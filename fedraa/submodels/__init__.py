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
from fedraa.submodels.indices import take_prefix
from fedraa.submodels.meter import measure_cost
from fedraa.submodels.traced import IndexSet, Traced
from fedraa.submodels.tracing.trace import trace_module

__all__ = [
    "Cost",
    "IndexSet",
    "Traced",
    "copy_structure",
    "drop_weights",
    "flatten_parameters",
    "load_parameters",
    "measure_cost",
    "take_prefix",
    "trace_module",
    "trainable_parameters",
    "view_as_tensor",
]
