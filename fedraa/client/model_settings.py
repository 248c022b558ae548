"""Settings of the torch modules that a trainer creates for its tasks."""

from dataclasses import dataclass, field

from fedraa.client.training_state import TrainingState
from fedraa.objectives import Objective


@dataclass(frozen=True)
class ModelSettings:
    """Settings of the torch modules that a trainer creates for its tasks.

    Attributes:
        objective: The objective that computes the loss; None for classification.
        state: The state that the model changes in training besides its parameters.
        fragment_scale: True to scale a fragment's activations while it trains (`scale_readers`).
        scale_inner: True to also scale activations between two cut layers.
        label_shares: The share of each label in the data of all clients; None for equal shares.
    """

    objective: Objective | None = None
    state: TrainingState = field(default_factory=TrainingState)
    fragment_scale: bool = False
    scale_inner: bool = False
    label_shares: tuple[float, ...] | None = None
