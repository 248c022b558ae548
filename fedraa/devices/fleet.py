"""The fleet: the compute speed, bandwidth, latency, memory and power of every client's device.

A fleet has one of two systems of units:

- Relative units (the default) refer to a client with the mean number of samples. A device of compute speed 1 trains
  the full model for 5 epochs in one time unit. A link of bandwidth 1 transfers the full model in one time unit. A
  memory of 1 holds the training state of the full model.
- Physical units: FLOP/s, bytes/s, seconds and bytes. Only devices in physical units can have a power in watts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from fedraa.devices.link_traces import LinkTrace
from fedraa.messages import Floats

# In relative units, a device of compute speed 1 trains the full model for this number of epochs in one time unit. The
# Fed-RAA paper uses the same number of local epochs.
REFERENCE_EPOCHS = 5
COLUMNS = {"compute": None, "downlink": np.inf, "uplink": np.inf, "latency": 0.0, "memory": np.inf}
# Optional columns: the power in watts while a device trains, receives, sends, and waits during a task.
Power = Literal["watts_train", "watts_down", "watts_up", "watts_idle"]
WATTS: tuple[str, ...] = get_args(Power)


class TaskTimes(NamedTuple):
    """The duration of each phase of one task, in time units.

    Attributes:
        latency: The latency of the link.
        down: The download of the submodel.
        train: The local training.
        up: The upload of the update.
        server: The computation of the server's part of a split model.
    """

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
    """The load of tasks on devices, in the fleet's units, as numbers or as arrays that broadcast to [N, M].

    In relative units, `down` and `up` are shares of the full model, and `memory` is a share of its training state.

    Attributes:
        work: The FLOPs. In relative units, it is a share of the reference task, which trains the full model for 5
            epochs on the clients' mean number of samples.
        down: The bytes that the client receives.
        up: The bytes that the client sends.
        memory: The bytes of the training state.
    """

    work: Floats | float
    down: Floats | float
    up: Floats | float
    memory: Floats | float = 0.0


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices of all clients. Arrays are float64 [N], in relative or physical units.

    Attributes:
        compute: Compute speed.
        downlink: Bandwidth from the server to the client, or its mean if the bandwidth changes with time.
        uplink: Bandwidth from the client to the server, or its mean if the bandwidth changes with time.
        latency: Time that every task needs besides its transfers and its training.
        memory: Memory for the training state.
        relative: True for relative units, False for physical units.
        watts: The known power values by column, such as `watts_train`.
        links: The bandwidths over time, by client.
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

    @property
    def unit(self) -> str:
        """The unit of durations as a suffix: ` s`, or an empty text in relative units."""
        return "" if self.relative else " s"

    def cost(self, load: Load, clients: npt.NDArray[np.int64] | int | slice = slice(None)) -> Floats:
        """Return latency + down/downlink + work/compute + up/uplink, in time units.

        Args:
            load: The load of a task, as numbers or arrays.
            clients: The clients. With an array [n, 1] and loads that broadcast to [n, M], the result is a table [n, M].
        """
        return np.asarray(
            self.latency[clients]
            + load.down / self.downlink[clients]
            + load.work / self.compute[clients]
            + load.up / self.uplink[clients]
        )

    def times(self, load: Load, client: int, start: float | None = None, server: float = 0.0) -> TaskTimes:
        """Return the duration of each phase of one task.

        Args:
            load: The load of the task, as numbers.
            client: The client.
            start: The time at which the server sends the task, for bandwidths that change with time; None for the
                means.
            server: The time that the server's part of a split model needs.
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
        """Return the energy of a task in joules: the sum of power times duration (`times`, in seconds) of its phases.

        A phase without a known power counts as 0. During the latency and the server's computation, the power is
        `watts_idle`. Return None if no power is known.
        """
        if not self.watts:
            return None
        seconds = (times.train, times.down, times.up, times.latency + times.server)
        known = zip(WATTS, seconds, strict=True)
        return sum(float(self.watts[name][client]) * time for name, time in known if name in self.watts)

    def fits_memory(self, load: Load, clients: int | slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Return True for each client if the training state of a task fits in the memory of the client's device.

        Args:
            load: The load of the task.
            clients: One client, or a slice of the clients [N].
        """
        return np.asarray(load.memory <= self.memory[clients] * (1 + 1e-9))
