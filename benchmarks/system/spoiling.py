"""The kinds of invalid updates that bad clients send, and fedraa's message in the log about each kind."""

from dataclasses import replace

import numpy as np

from fedraa.messages import Update

# The kinds of invalid updates, each with a regular expression that matches its message in the log.
CAUSES = {
    "not finite": r"update refused: params hold 1 values that are not finite",
    "wrong length": r"update refused: params have the shape \(\d+,\), not \(\d+,\)",
    "1e30": r"update refused: params hold values up to 1e\+30, the received weights only up to [\d.]+",
    "loss": r"update refused: the training loss is nan",
    "raises": r"ZeroDivisionError: no such thing",
}


def spoil_update(update: Update, kind: str) -> Update:
    """Change a valid update into an invalid one of this kind and return it, or raise the error of this kind."""
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
