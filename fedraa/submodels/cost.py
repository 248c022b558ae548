"""The cost of training a submodel."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The cost of training a submodel.

    Attributes:
        params: Number of trainable parameters.
        bytes: Bytes to send the trainable parameters once in one direction.
        flops: FLOPs of the forward and the backward pass of one sample.
        memory: Peak memory in bytes of one SGD step on the example batch: parameters, buffers, gradients and the values
            that the backward pass needs.
        personal: Number of trainable parameters that stay at the client.
    """

    params: int
    bytes: int
    flops: float
    memory: int
    personal: int = 0
