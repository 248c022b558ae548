"""Data hosts for the option `data_on_nodes`. A data host is an actor that reads the data set for its node's workers."""

import logging
import socket
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors import runtime
from actors.pool.liveness import Heartbeat, LivenessProbe, actor_class
from actors.pool.serializer import Blocks, put_blocks
from actors.ray_versions import AnyRef
from fedraa.config.sections import ProblemOptions
from fedraa.data import DivisionSettings, Federated, divide_dataset
from fedraa.data.tree import list_leaves
from fedraa.engine.run_data import read_dataset
from fedraa.errors import InputError

logger = logging.getLogger(__name__)


class DataHost:
    """An actor that holds the clients' training data on one node. It reserves no CPU."""

    def __init__(self) -> None:
        self._blocks: Blocks | None = None

    def blocks(self, problem: ProblemOptions, dealing: DivisionSettings, wanted: int) -> Blocks:
        """Return the clients' training data. The first call reads the data set on this node.

        Args:
            problem: The options of the data set.
            dealing: The settings with which the data set is divided among the clients.
            wanted: The checksum of the data on the driver's node.

        Raises:
            InputError: The data on this node have a different checksum.
        """
        if self._blocks is None:
            self._blocks = self._read_blocks(problem, dealing, wanted)
        return self._blocks

    def _read_blocks(self, problem: ProblemOptions, dealing: DivisionSettings, wanted: int) -> Blocks:
        data = divide_dataset(read_dataset(problem), dealing)
        if data_checksum(data) != wanted:
            raise InputError(
                "data_dir",
                f"{problem.dataset} in {problem.data_dir} differs between {socket.gethostname()} and the driver's node",
                hint="copy the same files to every node",
            )
        return put_blocks(data)


@dataclass
class DataHosts:
    """The data hosts of a run, one per node. A data host is created when the first worker of its node has started.

    Attributes:
        problem: The options of the data set.
        dealing: The settings with which the data set is divided among the clients.
        fingerprint: The checksum of the data on the driver's node.
        heartbeat: The interval and the bounds of liveness probes.
    """

    problem: ProblemOptions
    dealing: DivisionSettings
    fingerprint: int
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    _actors: dict[str, Any] = field(default_factory=dict)
    _probes: dict[str, LivenessProbe] = field(default_factory=dict)

    def blocks(self, node: str) -> tuple[Any, AnyRef]:
        """Return a node's data host, and a reference to the training data (Blocks) that the host reads."""
        if node not in self._actors:
            on_node = NodeAffinitySchedulingStrategy(node, soft=False)
            self._actors[node] = actor_class(DataHost).options(num_cpus=0, scheduling_strategy=on_node).remote()
            self._probes[node] = LivenessProbe(self._actors[node], self.heartbeat)
        blocks = self._actors[node].blocks.remote(self.problem, self.dealing, self.fingerprint)
        return self._actors[node], blocks

    def drop(self, node: str, host: Any) -> None:
        """Kill the data host of a node, because its data were lost. The next call of `blocks` creates a new host.

        If the node already has a newer host, this method does nothing.
        """
        if self._actors.get(node) is host:
            runtime.kill(self._actors.pop(node))
            del self._probes[node]

    def drop_frozen(self) -> None:
        """Kill frozen data hosts. Calls that wait for a killed host fail, and are repeated later."""
        for node, probe in list(self._probes.items()):
            silence = probe.silent_seconds()
            if silence is not None:
                logger.warning("data host on node %s: no sign of life for %.3g s; it is replaced", node[:8], silence)
                self.drop(node, self._actors[node])

    def close(self) -> None:
        for node, host in list(self._actors.items()):
            self.drop(node, host)


def data_checksum(data: Federated) -> int:
    """Return a checksum of the clients' training data. Samples that stay in files are not included."""
    value = 0
    for array in (*list_leaves(data.x_train), data.y_train, data.offsets):
        value = zlib.crc32(np.ascontiguousarray(array).data, value)
    return value
