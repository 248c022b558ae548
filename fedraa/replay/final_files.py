"""Check the files of a finished run besides its log: checkpoints, model and totals."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from fedraa.engine.resume_guard import asked, changed
from fedraa.errors import Damaged, Inconsistent
from fedraa.reading import content, opened
from fedraa.rundir.checkpoint import ASKED, head, newest_first
from fedraa.rundir.config_file import read_config
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, MODEL, SUMMARY
from fedraa.rundir.frozen_base import base_sha256
from fedraa.rundir.growing_file import damage
from fedraa.rundir.history import History
from fedraa.rundir.summary import summarise


def check_checkpoints(directory: Path) -> None:
    """Check that every checkpoint is whole, and fits the log and the experiment."""
    now = asked(read_config(directory / CONFIG))
    for path in newest_first(directory / CHECKPOINTS):
        try:
            state = head(path)
        except Damaged as error:
            # A run in progress may have deleted it in the meantime.
            if not path.exists():
                continue
            raise Inconsistent(f"{CHECKPOINTS}/{path.name}", str(error)) from None
        wrong = damage(directory, state["log"]) if "log" in state else "has no state of a log"
        if wrong is not None:
            raise Inconsistent(f"{CHECKPOINTS}/{path.name}", wrong)
        if (what := changed(state[ASKED], now)) is not None:
            raise Inconsistent(CONFIG, f"{what}, when {path.name} was written")


def check_summary(directory: Path, time_to_target: float | None) -> None:
    """Check that the totals are those of the log, which was checked before."""
    try:
        summary = json.loads(content(directory / SUMMARY))
    except (OSError, ValueError, RecursionError):
        raise Inconsistent(SUMMARY, "is missing or no JSON, though the log has ended") from None
    expected = summarise(History(directory)) | {"time_to_target": time_to_target}
    for key, value in expected.items():
        if not isinstance(summary, dict) or key not in summary or summary[key] != value:
            said = summary.get(key) if isinstance(summary, dict) else summary
            raise Inconsistent(SUMMARY, f"{key} is {said!r}; the log gives {value!r}")


def check_model(
    directory: Path, tensors: list[str], expected: str, base: str | None = None, changed: Sequence[str] = ()
) -> None:
    """Check that the SHA-256 of the float32 parameters in the order of their names is the one in the log.

    Args:
        directory: The run.
        tensors: The names of the parameters.
        expected: The digest in the log.
        base: The digest of the frozen part in config.json, if there is one.
        changed: Buffers that are no part of it, because training changes them.
    """
    try:
        with opened(directory / MODEL) as stream:
            state = torch.load(stream, map_location="cpu", weights_only=True)
        parameters = [state[name].numpy() for name in sorted(tensors)]
    # torch raises any exception for a file of another kind.
    except Exception as error:
        raise Inconsistent(MODEL, f"cannot be read as the model of this run: {error}") from None
    digest = hashlib.sha256(b"".join(parameter.tobytes() for parameter in parameters)).hexdigest()
    if digest != expected:
        raise Inconsistent(
            MODEL, f"model_sha256 of its parameters is {digest}; the last line of the log says {expected}"
        )
    if base is not None and (digest := base_sha256(state, tensors, changed)) != base:
        raise Inconsistent(MODEL, f"the digest of its frozen base is {digest}; {CONFIG} says {base}")
