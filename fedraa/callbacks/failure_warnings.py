"""Warn when a task of a client fails."""

import warnings

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event
from fedraa.errors import RunWarning
from fedraa.ledger.bad_clients import QUARANTINED

# Maximum number of warnings in a run.
MAX_WARNINGS = 10


class FailureWarnings(Callback):
    """A callback that issues a Python warning for each task that failed because of its client.

    After `MAX_WARNINGS` warnings, a last warning refers to summary.json.
    """

    blocking = False

    def __init__(self) -> None:
        self._count = 0

    def on_drop(self, event: Event) -> None:
        self._count += 1
        if self._count <= MAX_WARNINGS:
            action = "is quarantined" if event["action"] == QUARANTINED else "gets another task"
            text = f"client {event['client']} {action}: its task {event['task']} failed with {event['error']}"
            warnings.warn(text, RunWarning, stacklevel=2)
        elif self._count == MAX_WARNINGS + 1:
            text = "more tasks of clients failed; summary.json lists all clients and reasons"
            warnings.warn(text, RunWarning, stacklevel=2)
