"""What a server is built from, whichever it is."""

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
    """What a server is built from: the model as it starts [d], its parts, the run, and where events go.

    A `store` keeps an asynchronous server's parameters; without one it does so itself, and puts what it sends where
    `share` says. With `learn` it follows real durations.
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
