"""The lines of `fedraa plan --nodes` about the memory and the traffic of the nodes of a cluster."""

from dataclasses import dataclass
from typing import Self

from fedraa.config.processes import CALLS_PER_WORKER, count_workers
from fedraa.engine.memory_check import PROCESS_BYTES, Need
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import InputError, no_effect_error
from fedraa.numbers import format_count, format_quantity

# Bytes that training adds to a worker's process, besides the model. Measured on Linux.
TRAINING_BYTES = 40e6


@dataclass(frozen=True)
class NodeNeeds:
    """The bytes that the nodes of a cluster need. All nodes are equal and have equal numbers of workers.

    Attributes:
        workers: The number of workers of a node.
        worker: Bytes of a worker.
        stored: Maximum bytes in the object store of each node. In a long run every worker trains every client, so that
            all data are on every node.
        server: Bytes of the server.
        sent: Additional bytes in the object store of the server's node, for the calls of the other nodes' workers.
        task: Bytes of the parameters of the largest task.
        data: Bytes of the data.
    """

    workers: int
    worker: float
    stored: float
    server: float
    sent: float
    task: float
    data: float

    @classmethod
    def of(cls, spec: RunSpec, nodes: int) -> Self:
        """Return what a run needs on a cluster with `nodes` nodes."""
        experiment = spec.experiment
        all_workers = count_workers(experiment, experiment.client_count)
        workers = -(-all_workers // nodes)
        need = Need.of(spec)
        task = max(spec.measure(submodel.widths).bytes for submodel in spec.submodels)
        # A call refers to parameters in the object store, which stay there until the call ends.
        calls = min(spec.at_a_time, CALLS_PER_WORKER * all_workers)
        here = min(calls, CALLS_PER_WORKER * workers)
        return cls(
            workers=workers,
            # A training worker needs `need.worker`, the additional memory of training, and the received parameters.
            worker=need.worker + TRAINING_BYTES + task,
            # An evaluation also stores a copy of the model, which is the last term.
            stored=need.data + here * task + spec.params.nbytes,
            server=PROCESS_BYTES + need.server,
            sent=(calls - here) * task + spec.params.nbytes,
            task=task,
            data=need.data,
        )


def cluster_lines(spec: RunSpec, nodes: int | None) -> list[str]:
    """Return lines about the memory of each node and the traffic between nodes. Without `nodes`, return no lines."""
    if nodes is None:
        return []
    experiment = spec.experiment
    if experiment.engine != "ray":
        raise no_effect_error("nodes", nodes, f"engine {experiment.engine}", "give --engine ray")
    workers = count_workers(experiment, experiment.client_count)
    if not 1 <= nodes <= workers:
        expected = f"from 1 to {workers}, the number of workers"
        raise InputError("nodes", got=nodes, expected=expected, hint="--workers counts the workers of all nodes")
    needs = NodeNeeds.of(spec, nodes)
    one_way = format_quantity(needs.task, "B")
    return [
        f"each node      {format_quantity(needs.workers * needs.worker + needs.stored, 'B')}: "
        f"{format_count(needs.workers, 'worker')} of {format_quantity(needs.worker, 'B')}, and at most "
        f"{format_quantity(needs.stored, 'B')} in Ray's object store",
        f"server's node  another {format_quantity(needs.server + needs.sent, 'B')}",
        f"network        at most {one_way} to a worker and {one_way} back for each update, and "
        f"{format_quantity(needs.data, 'B')} of data to each node",
    ]
