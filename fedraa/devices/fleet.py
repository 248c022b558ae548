"""The devices: compute, bandwidth, latency and memory of every client, and what a task costs on them.

Two systems of units, told apart by `relative`:

- relative (the default): compute 1 trains the full model on an average shard for `REFERENCE_EPOCHS` local
  epochs in time 1; bandwidth 1 moves the full model in time 1; memory 1 holds the training of the full model.
- physical: FLOP/s, bytes/s, seconds, bytes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# The local epochs that a relative cost of 1 stands for: those of the Fed-RAA paper.
REFERENCE_EPOCHS = 5
COLUMNS = {"compute": None, "downlink": np.inf, "uplink": np.inf, "latency": 0.0, "memory": np.inf}


@dataclass(frozen=True, eq=False)
class Load:
    """What tasks ask of a device, in the fleet's units; scalars, or arrays that broadcast to [N, M].

    `work` and `down`, `up` are fractions of the reference task and of the full model (relative), or FLOPs and
    bytes (physical); `memory` likewise.
    """

    work: Floats | float
    down: Floats | float
    up: Floats | float
    memory: Floats | float = 0.0


@dataclass(frozen=True, eq=False)
class Fleet:
    """One row per client: float64 arrays [N] in the units above."""

    compute: Floats
    downlink: Floats
    uplink: Floats
    latency: Floats
    memory: Floats
    relative: bool = True

    def __len__(self) -> int:
        return len(self.compute)

    def cost(self, load: Load, clients: npt.NDArray[np.int64] | int | slice = slice(None)) -> Floats:
        """latency + down/downlink + work/compute + up/uplink, in time units (ALGORITHMS section 4 row 1).

        With `clients` an array [n, 1] and loads that broadcast to [n, M], the table c[n, j].
        """
        return np.asarray(
            self.latency[clients]
            + load.down / self.downlink[clients]
            + load.work / self.compute[clients]
            + load.up / self.uplink[clients]
        )

    def fits(self, load: Load, clients: npt.NDArray[np.int64] | int | slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Whether the training state of a task fits the device's memory; broadcasts as `cost`."""
        return np.asarray(load.memory <= self.memory[clients] * (1 + 1e-9))
