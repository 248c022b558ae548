"""Data on nodes: every node with workers reads the dataset once and keeps the clients' shards in its object store."""

import socket
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.pool.serializer import Blocks, put_blocks
from fedraa.config.experiment import Experiment
from fedraa.data import Federated
from fedraa.data.tree import leaves
from fedraa.engine.build import deal, read


class DataHost:
    """An actor without a core that owns a node's shards."""

    def __init__(self) -> None:
        self._blocks: Blocks | None = None

    def blocks(self, experiment: Experiment, wanted: int) -> Blocks:
        """The shards as this node reads them, once; ValueError if they have not the fingerprint `wanted`."""
        if self._blocks is None:
            self._blocks = self._read(experiment, wanted)
        return self._blocks

    def _read(self, experiment: Experiment, wanted: int) -> Blocks:
        data = deal(experiment, read(experiment))
        if fingerprint(data) != wanted:
            raise ValueError(
                f"data_dir: {experiment.dataset} in {experiment.data_dir} on node {socket.gethostname()} "
                "is not what the driver has read; give every node the same files"
            )
        return put_blocks(data)


@dataclass
class DataHosts:
    """The hosts of a run, one per node, each started when the first worker of its node has."""

    experiment: Experiment
    fingerprint: int
    _actors: dict[str, Any] = field(default_factory=dict)

    def blocks(self, node: str) -> ray.ObjectRef[Any]:
        """The Blocks of a node, there as soon as it has read the dataset."""
        if node not in self._actors:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            self._actors[node] = ray.remote(DataHost).options(num_cpus=0, scheduling_strategy=there).remote()
        answer: ray.ObjectRef[Any] = self._actors[node].blocks.remote(self.experiment, self.fingerprint)
        return answer

    def drop(self, node: str) -> None:
        """A node's host and shards are gone, or no good: they are read again when they are wanted."""
        if node in self._actors:
            ray.kill(self._actors.pop(node))

    def close(self) -> None:
        for node in list(self._actors):
            self.drop(node)


def fingerprint(data: Federated) -> int:
    """A checksum of the clients' training data."""
    arrays = (*leaves(data.x_train), data.y_train, data.offsets)
    value = 0
    for array in arrays:
        value = zlib.crc32(np.ascontiguousarray(array).data, value)
    return value
