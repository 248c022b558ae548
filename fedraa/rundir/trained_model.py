"""The model of a finished run, as a module that takes unscaled inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedraa.components.text import is_script_path, paths_in
from fedraa.config.experiment import Experiment
from fedraa.config.sections import ProblemOptions
from fedraa.data.transforms import make_transforms
from fedraa.errors import InputError, one_line, read_failure
from fedraa.models import build_model
from fedraa.models.raw_input import RawInputModel
from fedraa.models.wrappers import unwrap_module
from fedraa.reading.regular_files import open_regular_file
from fedraa.rundir.config_file import RESTORE
from fedraa.rundir.file_names import MODEL
from fedraa.rundir.inputs import Inputs, read_inputs
from fedraa.submodels.tracing.accept import copy_private


def load_trained(
    directory: Path,
    config: Mapping[str, Any],
    *,
    model: object,
    transforms: Sequence[object] | None,
    trust: bool,
) -> RawInputModel:
    """Return the trained model of the run in `directory`, in evaluation mode.

    Args:
        directory: The run directory.
        config: The configuration of the run.
        model: The model, if the run was started with an object.
        transforms: The transforms of the run, if they were defined in a script or a notebook.
        trust: True to allow the import of user code that the run directory names.

    Raises:
        ValueError: The run has not ended, an object is missing, or an object does not fit.
    """
    if not (directory / MODEL).exists():
        raise InputError("run", f"{directory} has no {MODEL}", hint="give a run that has ended")
    experiment = Experiment(**config["experiment"])
    _refuse_foreign(directory, experiment, model=model, transforms=transforms, trust=trust)
    if model is None and "model" in config.get("given", ()):
        raise InputError(
            "model",
            f"the model of {directory} was given as an object",
            hint="give the object again: load_model(model=...)",
        )
    inputs = read_inputs(config)
    if transforms is None:
        transforms = experiment.transforms
    elif not isinstance(transforms, list | tuple):
        transforms = (transforms,)
    unfitted = make_transforms(transforms, seed=experiment.seed)
    module = _make_module(experiment, inputs, model, seed=experiment.seed)
    _load_parameters(module, directory / MODEL)
    return RawInputModel(module, inputs.scaling, inputs.restore_transforms(unfitted)).eval()


def _refuse_foreign(
    directory: Path, problem: ProblemOptions, *, model: object, transforms: Sequence[object] | None, trust: bool
) -> None:
    """Raise InputError if the run needs user code that cannot be imported or that the caller does not trust."""
    written = problem.model_dump(mode="json", include={"model", "transforms"})
    objects = {"model": model, "transforms": transforms}
    foreign: set[str] = set()
    for name, value in objects.items():
        if value is not None:
            continue
        for path in paths_in(written[name]):
            if is_script_path(path):
                raise InputError(
                    name,
                    f"{directory} was trained with {path}, which a script or a notebook defined",
                    hint=f"give it again: load_model({name}=...)",
                )
            foreign.add(path)
    if foreign and not trust:
        raise InputError(
            "run",
            f"{directory} names code that would be imported and run, {', '.join(sorted(foreign))}",
            hint="if you trust it, give trust=True",
        )


def _make_module(problem: ProblemOptions, inputs: Inputs, model: object, *, seed: int) -> nn.Module:
    """Return a copy of the user's model, or the named model of the experiment."""
    if isinstance(model, nn.Module):
        return copy_private(unwrap_module(model))
    # The options `hidden` and `dropout` have no effect on a model of the user.
    hidden = ProblemOptions.model_fields["hidden"].default
    dropout = 0.0
    if model is None or model == problem.model:
        hidden = problem.hidden
        dropout = problem.dropout
    return build_model(
        problem.model if model is None else model,
        inputs.batch,
        inputs.classes,
        hidden=hidden,
        dropout=dropout,
        seed=seed,
        misfit=lambda result: None,
    )


def _load_parameters(module: nn.Module, path: Path) -> None:
    try:
        with open_regular_file(path) as stream:
            state = torch.load(stream, map_location="cpu", weights_only=True)
    # PyTorch may raise any exception for a damaged file.
    except Exception as error:
        raise InputError("run", f"{path} cannot be read ({read_failure(error)[:200]})", hint=RESTORE) from None
    try:
        module.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise InputError(
            "model",
            f"{path} does not fit {type(module).__name__} ({one_line(error)[:200]})",
            hint="give the model that was trained",
        ) from None
