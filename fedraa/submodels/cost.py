"""What a cut costs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The cost of training a submodel.

    Attributes:
        params: trainable parameters, the length of its flat vector.
        bytes: of its flat vector, one way.
        flops: of one sample's forward and backward pass.
        memory: bytes at the peak of one SGD step on the example batch: parameters, buffers, gradients and
            what the backward pass needs.
    """

    params: int
    bytes: int
    flops: float
    memory: int
