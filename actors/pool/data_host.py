"""Data hosts: every node with workers reads the dataset once, and keeps the clients' shards in its object store."""

import logging
import socket
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors import runtime
from actors.pool.pulse import Heartbeat, LivenessProbe, actor_class
from actors.pool.serializer import Blocks, put_blocks
from actors.ray_versions import AnyRef
from fedraa.config.sections import ProblemOptions
from fedraa.data import Dealing, Federated, deal_samples
from fedraa.data.tree import list_leaves
from fedraa.engine.build import read_dataset
from fedraa.errors import InputError

logger = logging.getLogger(__name__)


class DataHost:
    """An actor that owns a node's client shards. It reserves no core."""

    def __init__(self) -> None:
        self._blocks: Blocks | None = None

    def blocks(self, problem: ProblemOptions, dealing: Dealing, wanted: int) -> Blocks:
        """Return the shards, which this node reads on the first call.

        Args:
            problem: The options of the dataset.
            dealing: The settings for dealing it to the clients.
            wanted: The fingerprint of the driver's shards.

        Raises:
            InputError: This node's shards have another fingerprint.
        """
        if self._blocks is None:
            self._blocks = self._read_blocks(problem, dealing, wanted)
        return self._blocks

    def _read_blocks(self, problem: ProblemOptions, dealing: Dealing, wanted: int) -> Blocks:
        data = deal_samples(read_dataset(problem), dealing)
        if data_checksum(data) != wanted:
            raise InputError(
                "data_dir",
                f"{problem.dataset} in {problem.data_dir} on {socket.gethostname()} differs from the driver's",
                hint="give every node the same files",
            )
        return put_blocks(data)


@dataclass
class DataHosts:
    """The data hosts of a run, one per node. Each starts after the first worker of its node."""

    problem: ProblemOptions
    dealing: Dealing
    fingerprint: int
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _actors: dict[str, Any] = field(default_factory=dict)
    _pulses: dict[str, LivenessProbe] = field(default_factory=dict)

    def blocks(self, node: str) -> tuple[Any, AnyRef]:
        """Return the host of a node and the reference of its Blocks, which is ready after it has read the dataset."""
        if node not in self._actors:
            on_node = NodeAffinitySchedulingStrategy(node, soft=False)
            self._actors[node] = actor_class(DataHost).options(num_cpus=0, scheduling_strategy=on_node).remote()
            self._pulses[node] = LivenessProbe(self._actors[node], self.heartbeat)
        blocks = self._actors[node].blocks.remote(self.problem, self.dealing, self.fingerprint)
        return self._actors[node], blocks

    def drop(self, node: str, host: Any) -> None:
        """Remove a node's host if its shards are lost, unless another host has replaced it.

        The next request reads the shards again.
        """
        if self._actors.get(node) is host:
            runtime.kill(self._actors.pop(node))
            del self._pulses[node]

    def drop_frozen(self) -> None:
        """Remove hosts without a sign of life. A worker's call that waits for such a host fails and is repeated."""
        for node, pulse in list(self._pulses.items()):
            silence = pulse.silent_seconds()
            if silence is not None:
                logger.warning("data host on node %s: no sign of life for %.3g s; it is replaced", node[:8], silence)
                self.drop(node, self._actors[node])

    def close(self) -> None:
        for node, host in list(self._actors.items()):
            self.drop(node, host)


def data_checksum(data: Federated) -> int:
    """Return a checksum of the clients' training data, or of the part that is in this process."""
    value = 0
    for array in (*list_leaves(data.x_train), data.y_train, data.offsets):
        value = zlib.crc32(np.ascontiguousarray(array).data, value)
    return value
