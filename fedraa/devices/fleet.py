"""The devices: compute speed, bandwidth, latency, memory and power of every client, and the cost of a task on them.

There are two systems of units; `relative` selects one:

- Relative units, the default. Compute 1 trains the full model on an average shard for `REFERENCE_EPOCHS` local
  epochs in time 1. Bandwidth 1 moves the full model in time 1. Memory 1 holds the training state of the full model.
- Physical units: FLOP/s, bytes/s, seconds, bytes. Only these devices may have watts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from fedraa.devices.link_traces import LinkTrace

Floats = npt.NDArray[np.float64]

# Number of local epochs in a task of relative cost 1, as in the Fed-RAA paper.
REFERENCE_EPOCHS = 5
COLUMNS = {"compute": None, "downlink": np.inf, "uplink": np.inf, "latency": 0.0, "memory": np.inf}
# The optional columns of the power [W] while a device trains, receives, sends, and waits within a task.
Power = Literal["watts_train", "watts_down", "watts_up", "watts_idle"]
WATTS: tuple[str, ...] = get_args(Power)


class TaskTimes(NamedTuple):
    """The duration of each phase of one task, in time units. `server` is the time that a split model's server needs."""

    latency: float
    down: float
    train: float
    up: float
    server: float = 0.0

    @property
    def total(self) -> float:
        """The duration of the task."""
        return self.latency + self.down + self.train + self.up + self.server


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
    """The devices of all clients, as float64 arrays [N] in the units of this module.

    `watts` holds those columns of `WATTS` that are known. A client in `links` has bandwidths that change with time.
    Its `downlink` and `uplink` are their means.
    """

    compute: Floats
    downlink: Floats
    uplink: Floats
    latency: Floats
    memory: Floats
    relative: bool = True
    watts: Mapping[str, Floats] = field(default_factory=dict)
    links: Mapping[int, LinkTrace] = field(default_factory=dict)

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

    def times(self, load: Load, client: int, start: float | None = None, server: float = 0.0) -> TaskTimes:
        """Return the duration of each phase of one task: latency, download, training, upload.

        Args:
            load: The load of the task, as scalars.
            client: The client.
            start: The time at which the server sends the task. It selects the bandwidths of a client in `links`. None:
                the means of the bandwidths.
            server: The time that the server of a split model needs.
        """
        latency = float(self.latency[client])
        train = float(load.work / self.compute[client])
        trace = self.links.get(client)
        if trace is None or start is None:
            down = float(load.down / self.downlink[client])
            up = float(load.up / self.uplink[client])
        else:
            down = trace.download_time(start + latency, float(load.down))
            up = trace.upload_time(start + latency + down + train + server, float(load.up))
        return TaskTimes(latency, down, train, up, server)

    def energy(self, times: TaskTimes, client: int) -> float | None:
        """Return the joules of a task: power x time over its phases (None: no power is known).

        A phase without a known power does not count. While the device waits for the network or the server, it has the
        power `watts_idle`.

        Args:
            times: The duration of each phase, in seconds.
            client: The client.
        """
        if not self.watts:
            return None
        seconds = (times.train, times.down, times.up, times.latency + times.server)
        known = zip(WATTS, seconds, strict=True)
        return sum(float(self.watts[name][client]) * time for name, time in known if name in self.watts)

    def fits_memory(
        self, load: Load, clients: npt.NDArray[np.int64] | int | slice = slice(None)
    ) -> npt.NDArray[np.bool_]:
        """Return True if the training state of a task fits into the device's memory.

        Arguments broadcast as in `cost`.
        """
        return np.asarray(load.memory <= self.memory[clients] * (1 + 1e-9))
