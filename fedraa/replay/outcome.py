"""What a finished run left besides its log: the model and the totals."""

import hashlib
import json
import pickle
from pathlib import Path

import torch

from fedraa.errors import Inconsistent
from fedraa.rundir.history import History
from fedraa.rundir.layout import MODEL, SUMMARY
from fedraa.rundir.summary import summarise


def check_summary(directory: Path, time_to_target: float | None) -> None:
    """The totals are those of the log, which has been checked before."""
    try:
        summary = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise Inconsistent(f"{SUMMARY}: is missing or no JSON, though the log has ended") from None
    expected = summarise(History(directory)) | {"time_to_target": time_to_target}
    for key, value in expected.items():
        if not isinstance(summary, dict) or key not in summary or summary[key] != value:
            said = summary.get(key) if isinstance(summary, dict) else summary
            raise Inconsistent(f"{SUMMARY}: {key} is {said!r}; the log gives {value!r}")


def check_model(directory: Path, tensors: list[str], expected: str) -> None:
    """The SHA-256 of the float32 parameters in the order of their names is the one in the log."""
    try:
        state = torch.load(directory / MODEL, map_location="cpu", weights_only=True)
        parameters = [state[name].numpy() for name in sorted(tensors)]
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, LookupError, TypeError, AttributeError) as error:
        raise Inconsistent(f"{MODEL}: cannot be read as the model of this run: {error}") from None
    digest = hashlib.sha256(b"".join(parameter.tobytes() for parameter in parameters)).hexdigest()
    if digest != expected:
        raise Inconsistent(
            f"{MODEL}: model_sha256 of its parameters is {digest}; the last line of the log says {expected}"
        )
