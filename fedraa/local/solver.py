"""The local solver as values: which steps a client takes. All terms default to off."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Solver:
    """Momentum SGD on minibatches of the client's shard.

    `epochs` passes over the shard or, where `steps` is given, that many minibatches. `proximal` is the
    weight rho of (rho/2)||w - w_received||^2 (FedProx, FedAsync, Fed-RAA eq. 2 with the square that the
    definition of g has); `sam` the radius of sharpness-aware minimisation.
    """

    lr: float = 0.05
    momentum: float = 0.5
    batch_size: int = 32
    epochs: int = 5
    steps: int | None = None
    proximal: float = 0.0
    sam: float = 0.0

    @property
    def passes(self) -> int:
        """Forward-backward passes per step: SAM takes two."""
        return 2 if self.sam else 1

    def samples(self, shard: int) -> int:
        """Training samples that one task processes on a shard of that size."""
        return self.epochs * shard if self.steps is None else self.steps * min(self.batch_size, shard)

    def batches(self, shard: int) -> int:
        """Local steps that one task takes on a shard of that size."""
        return self.epochs * -(-shard // self.batch_size) if self.steps is None else self.steps
