"""Python warnings about clients whose tasks fail, at the time of the failure."""

import warnings

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event
from fedraa.errors import RunWarning
from fedraa.ledger.bad_clients import QUARANTINED

MAX_WARNINGS = 10  # of one run


class FailureWarnings(Callback):
    """A callback that warns of each failed task of a client, and of each client that is quarantined.

    After `MAX_WARNINGS` it says once that the others are in summary.json.
    """

    waits = False

    def __init__(self) -> None:
        self._count = 0

    def on_drop(self, event: Event) -> None:
        self._count += 1
        if self._count <= MAX_WARNINGS:
            then = "is quarantined" if event["action"] == QUARANTINED else "is given work again"
            text = f"client {event['client']} {then}: its task {event['task']} failed with {event['what']}"
            warnings.warn(text, RunWarning, stacklevel=2)
        elif self._count == MAX_WARNINGS + 1:
            text = "more tasks of clients fail; summary.json names all clients and reasons"
            warnings.warn(text, RunWarning, stacklevel=2)
