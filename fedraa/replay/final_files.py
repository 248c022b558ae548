"""Check the checkpoints, the model and the totals of a finished run."""

import hashlib
import json
from pathlib import Path

import torch

from fedraa.engine.resume_guard import first_difference, pinned_settings
from fedraa.errors import Damaged, Inconsistent, read_failure
from fedraa.reading.regular_files import open_regular_file, read_regular_file
from fedraa.replay.resolved import FrozenBase
from fedraa.rundir.checkpoint import ASKED, newest_first, read_head
from fedraa.rundir.config_file import read_config
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, EVENTS, MODEL, SUMMARY
from fedraa.rundir.frozen_base import base_sha256
from fedraa.rundir.growing_file import describe_damage
from fedraa.rundir.history import History
from fedraa.rundir.summary import summarise_run


def check_checkpoints(directory: Path) -> None:
    """Check that every checkpoint is complete and undamaged, and that it fits the log and the experiment."""
    now = pinned_settings(read_config(directory / CONFIG))
    for path in newest_first(directory / CHECKPOINTS):
        try:
            state = read_head(path)
        except Damaged as error:
            # A run that still writes the directory may have deleted the checkpoint.
            if not path.exists():
                continue
            raise Inconsistent(f"{CHECKPOINTS}/{path.name}", error.text) from None
        problem: str | None = "the checkpoint has no state of the log"
        if "log" in state:
            problem = describe_damage(directory, state)
        if problem is not None:
            raise Inconsistent(f"{CHECKPOINTS}/{path.name}", problem)
        change = first_difference(state[ASKED], now)
        if change is not None:
            raise Inconsistent(CONFIG, f"the configuration {change} when {path.name} was written")


def check_summary(directory: Path, time_to_target: float | None) -> None:
    """Check that the totals in summary.json are those of the log. The log must have been checked."""
    try:
        summary = json.loads(read_regular_file(directory / SUMMARY))
    except (OSError, ValueError, RecursionError):
        raise Inconsistent(SUMMARY, "the file is missing or is not JSON, although the log has an end") from None
    expected = summarise_run(History(directory)) | {"time_to_target": time_to_target}
    if not isinstance(summary, dict):
        raise Inconsistent(SUMMARY, got=summary, expected="the totals of the run")
    for key, value in expected.items():
        if key not in summary:
            raise Inconsistent(f"{SUMMARY} {key}", "it is missing")
        # Texts are compared, because in Python 1 equals True and 1.0.
        if json.dumps(summary[key]) != json.dumps(value):
            raise Inconsistent(f"{SUMMARY} {key}", got=summary[key], expected=f"{value!r}, as in {EVENTS}")


def check_model(directory: Path, tensors: list[str], expected: str, base: FrozenBase | None) -> None:
    """Check the SHA-256 of the float32 parameters, in the order of their names, against the log.

    Args:
        directory: The run directory.
        tensors: The names of the parameters.
        expected: The digest in the log.
        base: The frozen parameters in config.json; None if no parameters are frozen.
    """
    try:
        with open_regular_file(directory / MODEL) as stream:
            state = torch.load(stream, map_location="cpu", weights_only=True)
        parameters = [state[name].numpy() for name in sorted(tensors)]
    # PyTorch may raise any exception for a file of another format.
    except Exception as error:
        raise Inconsistent(MODEL, f"the file cannot be read as the model of this run: {read_failure(error)}") from None
    digest = hashlib.sha256(b"".join(parameter.tobytes() for parameter in parameters)).hexdigest()
    if digest != expected:
        problem = "the parameters have another digest than in the log"
        raise Inconsistent(f"{MODEL} model_sha256", problem, got=digest, expected=f"{expected}, as in {EVENTS}")
    if base is None:
        return
    base_digest = base_sha256(state, tensors, base.changed)
    if base_digest != base.sha256:
        problem = "the frozen base has another digest than in the configuration"
        raise Inconsistent(f"{MODEL} base", problem, got=base_digest, expected=f"{base.sha256}, as in {CONFIG}")
