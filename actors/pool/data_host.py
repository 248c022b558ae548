"""Data on nodes: every node with workers reads the dataset once and keeps the clients' shards in its object store."""

import logging
import socket
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.pool.pulse import Heartbeat, Pulse, actor_class
from actors.pool.serializer import Blocks, put_blocks
from fedraa.config.experiment import Experiment
from fedraa.data import Federated
from fedraa.data.tree import leaves
from fedraa.engine.build import deal, read
from fedraa.errors import InputError

logger = logging.getLogger(__name__)


class DataHost:
    """An actor without a core that owns a node's shards."""

    def __init__(self) -> None:
        self._blocks: Blocks | None = None

    def blocks(self, experiment: Experiment, wanted: int) -> Blocks:
        """Return the shards as this node reads them, once; raise InputError if their fingerprint is not `wanted`."""
        if self._blocks is None:
            self._blocks = self._read(experiment, wanted)
        return self._blocks

    def _read(self, experiment: Experiment, wanted: int) -> Blocks:
        data = deal(experiment, read(experiment))
        if fingerprint(data) != wanted:
            raise InputError(
                "data_dir",
                f"{experiment.dataset} in {experiment.data_dir} on {socket.gethostname()} differs from the driver's",
                hint="give every node the same files",
            )
        return put_blocks(data)


@dataclass
class DataHosts:
    """The hosts of a run, one per node, each started when the first worker of its node has."""

    experiment: Experiment
    fingerprint: int
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _actors: dict[str, Any] = field(default_factory=dict)
    _pulses: dict[str, Pulse] = field(default_factory=dict)

    def blocks(self, node: str) -> tuple[Any, ray.ObjectRef[Any]]:
        """The host of a node, and its Blocks, there as soon as it has read the dataset."""
        if node not in self._actors:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            self._actors[node] = actor_class(DataHost).options(num_cpus=0, scheduling_strategy=there).remote()
            self._pulses[node] = Pulse(self._actors[node], self.heartbeat)
        return self._actors[node], self._actors[node].blocks.remote(self.experiment, self.fingerprint)

    def drop(self, node: str, host: Any) -> None:
        """A node's host and shards are gone, or no good: they are read again when they are wanted.

        Unless another host is in its place by now.
        """
        if self._actors.get(node) is host:
            ray.kill(self._actors.pop(node))
            del self._pulses[node]

    def drop_frozen(self) -> None:
        """Workers that wait for one, or miss its shards, hear that it is dead."""
        for node, pulse in list(self._pulses.items()):
            if (silence := pulse.silence()) is not None:
                logger.warning("data host on node %s: no sign of life for %.3g s; it is replaced", node[:8], silence)
                self.drop(node, self._actors[node])

    def close(self) -> None:
        for node, host in list(self._actors.items()):
            self.drop(node, host)


def fingerprint(data: Federated) -> int:
    """A checksum of the clients' training data, or of a share of what they read themselves."""
    value = 0
    for array in (*leaves(data.x_train), data.y_train, data.offsets):
        value = zlib.crc32(np.ascontiguousarray(array).data, value)
    return value
