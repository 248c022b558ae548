"""A task as it is sent first, for tests that train one by itself."""

from typing import Any

from fedraa.messages import Task


def first_task(**fields: Any) -> Task:
    """The first task of client 0; its `widths`, `buffer` and `lr` are to be given."""
    given: dict[str, Any] = {"id": 0, "client": 0, "turn": 0, "fragment": 0, "version": 0, "step": 0, "cost": 1.0}
    return Task(**(given | fields))
