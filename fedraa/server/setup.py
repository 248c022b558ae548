"""The inputs from which any server is built."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraa.ledger.bad_clients import BadClients
from fedraa.messages import Vector
from fedraa.server.stores.local import Share, Store
from fedraa.server.tasks import Record, TaskTable
from fedraa.submodels.assignment import Submodel
from fedraa.submodels.policies.policy import RunContext, SubmodelPolicy


@dataclass(frozen=True, eq=False)
class ServerSetup:
    """The inputs from which a server is built.

    Attributes:
        params: The initial model [d].
        submodels: The fragments.
        run: The run.
        policy: Draws submodels.
        task_table: The tasks.
        record: Writes an event to the log.
        bad_clients: The policy for clients that fail.
        labels_held: The labels of each client.
        inputs: Numbers in one sample.
        fresh: Weight of the fresh gradient.
        learn: True if costs follow real durations.
        store: Keeps an asynchronous server's parameters. None: the server keeps them in this process.
        share: Places the buffers that the server sends.
    """

    params: Vector
    submodels: list[Submodel]
    run: RunContext
    policy: SubmodelPolicy
    task_table: TaskTable
    record: Record
    bad_clients: BadClients
    labels_held: npt.NDArray[np.bool_]
    inputs: int
    fresh: float
    learn: bool
    store: Store | None
    share: Share
