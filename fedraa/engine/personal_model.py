"""The personal model of one client, as a module. It takes inputs as they are in the data set, without scaling."""

import os
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import numpy as np
from torch import nn

from fedraa.arguments import RUN_PATH, check_flags, to_path
from fedraa.config.experiment import Experiment
from fedraa.config.file import check_names
from fedraa.data import Dataset, FederatedDataset
from fedraa.data.transforms import make_transforms
from fedraa.engine.factories import make_worker_spec
from fedraa.engine.objects import split_objects
from fedraa.engine.resume import rebuild_run
from fedraa.errors import InputError
from fedraa.models.raw_input import RawInputModel
from fedraa.rundir.checkpoint import choose_checkpoint, read_checkpoint
from fedraa.rundir.file_names import CHECKPOINTS
from fedraa.rundir.growing_file import describe_damage
from fedraa.rundir.history import History
from fedraa.rundir.inputs import read_inputs
from fedraa.server.client_states import ClientStates


def load_personal_model(
    directory: str | os.PathLike[str],
    client: int,
    *,
    model: nn.Module | Callable[[int], nn.Module] | str | None = None,
    dataset: Dataset | FederatedDataset | Callable[[], Dataset | FederatedDataset] | None = None,
    trust: bool = False,
    **fields: object,
) -> nn.Module:
    """Return the personal model of a client at the last checkpoint of a run.

        net = fedraa.load_personal_model("runs/ditto", client=3)
        predicted = net(images).argmax(1)

    The module is in evaluation mode and takes unscaled inputs, as the data set has them. It is the model that the
    client keeps, if the method keeps personal models. Otherwise it is the global model after training
    on the client's samples, and the run needs the option `personalised`. A client that has never trained has the
    global model.

    Args:
        directory: The run directory.
        client: The number of the client, from 0.
        model: The model, if the run was started with an object.
        dataset: The dataset, if the run was started with an object. Otherwise it is loaded again.
        trust: True to allow the import of user code that the run directory names.
        **fields: Components that were passed to the run as objects.

    Raises:
        ValueError: The run has no personal models, no such client or no checkpoint, or an object is missing.
    """
    directory = to_path("run", directory, RUN_PATH)
    check_flags(trust=trust)
    module, data, fields = split_objects(model, dataset, fields)
    check_names(fields, Experiment.model_fields)
    spec = rebuild_run(directory, module, data, fields, trust=trust)
    if not spec.personal_clients:
        problem = f"the clients of {directory} have no personal models"
        raise InputError("run", problem, hint="run with --personalised N, or with a method such as ditto")
    clients = spec.experiment.client_count
    if isinstance(client, bool) or not isinstance(client, int | np.integer) or client not in range(clients):
        raise InputError("client", got=client, expected=f"a whole number from 0 to {clients - 1}")
    choice = choose_checkpoint(directory / CHECKPOINTS, partial(describe_damage, directory), read_checkpoint)
    if choice is None:
        raise InputError("run", f"{directory} has no checkpoint yet", hint="wait for one, or resume the run")
    server = choice.state["server"]
    states = ClientStates(spec.kept_buffers, spec.params, clients)
    states.restore(server["task_table"]["client_states"])
    # With Polyak averaging, the run evaluates the mean of the last models.
    params = server.get("mean", server["params"])
    evaluator = make_worker_spec(spec).evaluator(spec.evaluation_data, "cpu")
    personal = evaluator.prepare_personal(params, states.copy_rows([client]), client, *spec.data.client(client))
    inputs = read_inputs(History(directory).config)
    transforms = inputs.restore_transforms(make_transforms(spec.experiment.transforms, seed=spec.experiment.seed))
    # The evaluator's parameters are read-only memory, so the result is a copy.
    return RawInputModel(deepcopy(personal), inputs.scaling, transforms).eval()
