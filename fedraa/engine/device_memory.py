"""A check before the start: methods without a scheduler may send a submodel that a device lacks the memory to train."""

import numpy as np

from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.preflight import discard_event
from fedraa.engine.run_spec import RunSpec
from fedraa.rundir.failures import name_clients

# Maximum number of first tasks that are compared with the memory of their devices.
MAX_FIRST_TASKS = 1000


def warn_of_small_memory(spec: RunSpec) -> list[str]:
    """Return a warning about the clients whose first task needs more memory than their devices have.

    Schedulers send only submodels that fit. Methods without a scheduler ignore the memory of devices.
    """
    fleet = spec.fleet
    if spec.method.schedule.scheduled or np.isinf(fleet.memory).all():
        return []
    costs = make_cost_model(spec)
    server = make_server(spec, discard_event)
    small = []
    for client in list(server.begin())[:MAX_FIRST_TASKS]:
        load = costs.load(server.assign(client, 0.0).widths, 0.0, 0, 0)
        if not fleet.fits_memory(load, client):
            small.append(client)
    if not small:
        return []
    clients = name_clients(sorted(small), spec.data.names)
    verb = "lacks" if len(small) == 1 else "lack"
    method = spec.experiment.method
    return [
        f"compute: {clients} {verb} the memory to train the first submodel that {method} sends; {method} ignores the "
        "memory of devices; give the clients more memory, or give a method with a scheduler, such as fed-raa"
    ]
