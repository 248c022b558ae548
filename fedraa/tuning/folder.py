"""The directory of a tuning. Only one process at a time may use it."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedraa.config.experiment import Experiment
from fedraa.config.sections import StopOptions
from fedraa.errors import InputError
from fedraa.rundir.atomic_files import json_text, write_text
from fedraa.rundir.run_lock import LOCK, lock_directory, refuse_unwritable

PLAN = "tune.json"


@contextmanager
def tuning_folder(directory: Path, described: Mapping[str, object]) -> Iterator[Path]:
    """Reserve `directory` for this process during the block.

    If the directory has an interrupted tuning with the plan `described`, this tuning continues. Raises InputError if
    the directory has another tuning, or if another process uses it.
    """
    plan = directory / PLAN
    text = json_text(described)
    with refuse_unwritable(directory):
        has_foreign_files = not plan.is_file() and directory.is_dir() and set(os.listdir(directory)) - {LOCK}
    if has_foreign_files:
        raise InputError("out", f"{directory} has other files", hint="choose a directory that is new or empty")
    with lock_directory(directory, "tuning"):
        if not plan.is_file():
            with refuse_unwritable(directory):
                write_text(plan, text)
        elif _read_plan_if_valid(plan) != json.loads(text):
            raise InputError(
                "out",
                f"{directory} holds a tuning with other methods, values or options",
                hint="give the same arguments to continue it, or choose another directory",
            )
        yield directory


def _read_plan_if_valid(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError):
        return None


def describe_template(template: Experiment) -> dict[str, Any]:
    """Return the fields of the trials' experiment that an interrupted tuning must keep to continue.

    Fields such as `workers` and `quiet` are left out, because they change no result.
    """
    unimportant = Experiment.may_change() - StopOptions.MAY_CHANGE - {"data_dir", "device"}
    fields = template.model_dump(mode="json", exclude=set(unimportant))
    if template.data_dir is not None:
        fields["data_dir"] = str(template.data_dir.resolve())
    return fields
