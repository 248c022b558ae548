"""The devices: compute speed, bandwidth, latency and memory of every client, and the cost of a task on them.

There are two systems of units; `relative` selects one:

- Relative units, the default. Compute 1 trains the full model on an average shard for `REFERENCE_EPOCHS` local
  epochs in time 1. Bandwidth 1 moves the full model in time 1. Memory 1 holds the training state of the full model.
- Physical units: FLOP/s, bytes/s, seconds, bytes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Number of local epochs in a task of relative cost 1, as in the Fed-RAA paper.
REFERENCE_EPOCHS = 5
COLUMNS = {"compute": None, "downlink": np.inf, "uplink": np.inf, "latency": 0.0, "memory": np.inf}


@dataclass(frozen=True, eq=False)
class Load:
    """The load of tasks on a device, in the fleet's units. The fields are scalars or arrays that broadcast to [N, M].

    In relative units `work` is a fraction of the reference task, `down` and `up` are fractions of the full model, and
    `memory` is a fraction of the full model's training state. In physical units `work` is FLOPs and the others are
    bytes.
    """

    work: Floats | float
    down: Floats | float
    up: Floats | float
    memory: Floats | float = 0.0


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices of all clients, as float64 arrays [N] in the units of this module."""

    compute: Floats
    downlink: Floats
    uplink: Floats
    latency: Floats
    memory: Floats
    relative: bool = True

    def __len__(self) -> int:
        return len(self.compute)

    def cost(self, load: Load, clients: npt.NDArray[np.int64] | int | slice = slice(None)) -> Floats:
        """Return latency + down/downlink + work/compute + up/uplink, in time units.

        If `clients` is an array [n, 1] and the loads broadcast to [n, M], the result is the table c[n, j].
        """
        return np.asarray(
            self.latency[clients]
            + load.down / self.downlink[clients]
            + load.work / self.compute[clients]
            + load.up / self.uplink[clients]
        )

    def fits_memory(
        self, load: Load, clients: npt.NDArray[np.int64] | int | slice = slice(None)
    ) -> npt.NDArray[np.bool_]:
        """Return True if the training state of a task fits into the device's memory.

        Arguments broadcast as in `cost`.
        """
        return np.asarray(load.memory <= self.memory[clients] * (1 + 1e-9))
