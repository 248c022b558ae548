"""The kinds of invalid updates that bad clients send, and the log's message about each."""

from dataclasses import replace

import numpy as np

from fedraa.messages import Update

# For each kind of invalid update: a regular expression that matches the log's message.
CAUSES = {
    "not finite": r"update refused: params hold 1 value that is not finite",
    "wrong length": r"update refused: params have the shape \(\d+,\), not \(\d+,\)",
    "1e30": r"update refused: params hold values up to 1e\+30, the received weights only up to [\d.]+",
    "loss": r"update refused: the training loss is nan",
    "raises": r"ZeroDivisionError: no such thing",
}


def spoil_update(update: Update, kind: str) -> Update:
    """Return an invalid copy of a valid update. For the kind `raises`, raise ZeroDivisionError."""
    params = update.params.copy()
    match kind:
        case "not finite":
            params[0] = np.nan
        case "wrong length":
            params = params[1:]
        case "1e30":
            params[-1] = 1e30
        case "loss":
            return replace(update, loss=float("nan"))
        case _:
            raise ZeroDivisionError("no such thing\nat all")
    return replace(update, params=params)
