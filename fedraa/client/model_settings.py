"""The settings of the modules that a trainer makes."""

from dataclasses import dataclass, field

from fedraa.client.training_state import TrainingState
from fedraa.objectives import Objective


@dataclass(frozen=True)
class ModelSettings:
    """The settings of the modules that a trainer makes.

    Attributes:
        objective: Computes the loss; None means classification.
        state: The state that the model changes by itself.
        fragment_scale: Scale a fragment's activations while it trains.
        scale_inner: Also scale activations between layers that are both cut.
        label_shares: The share of each label in the data of all clients. None: equal shares.
    """

    objective: Objective | None = None
    state: TrainingState = field(default_factory=TrainingState)
    fragment_scale: bool = False
    scale_inner: bool = False
    label_shares: tuple[float, ...] | None = None
