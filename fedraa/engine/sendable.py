"""The check that all components of a run can be sent to other processes."""

import io
from typing import Any

import cloudpickle

from fedraa.engine.run_spec import RunSpec
from fedraa.errors import InputError, short_text


def refuse_unsendable(spec: RunSpec) -> None:
    """Raise InputError, with the component's name, if a component of the run cannot be pickled."""
    wrong = _pickling_error(spec)
    if wrong is None:
        return
    name = "engine"
    component = "a component of this run"
    for field, value in (*spec.experiment, ("dataset", spec.data.source), ("model", spec.traced.module)):
        if _pickling_error(value):
            name = field
            component = f"the passed {field}" if field in spec.object_fields else short_text(value)
            break
    raise InputError(
        name,
        f"{component} cannot be sent to worker processes: {wrong}",
        hint="create the part that cannot be pickled only when it is first used, or choose --engine local --workers 1",
    )


def _pickling_error(part: object) -> str | None:
    """Return the reason why an object cannot be pickled; None if it can be pickled."""
    try:
        pickler: Any = cloudpickle.CloudPickler(io.BytesIO(), protocol=5, buffer_callback=lambda buffer: None)
        pickler.dump(part)
    # The pickling methods of a user's object can raise any exception.
    except Exception as error:
        return str(error) or type(error).__name__
    return None
