"""The first task of a run, for tests that train a single task."""

from typing import Any

from fedraa.messages import Task


def first_task(**fields: Any) -> Task:
    """Return the first task of client 0. The caller sets its `widths`, `buffer` and `lr`."""
    given: dict[str, Any] = {"id": 0, "client": 0, "turn": 0, "fragment": 0, "version": 0, "step": 0, "cost": 1.0}
    return Task(**(given | fields))
