"""Read experiments from TOML files.

The keys of a file are the fields of an experiment:

    method = "fed-raa"
    hidden = [200, 100]
    updates = 400
    scheduler = "my_ext:HighestLoss(patience=3)"

    [staleness]            # a component as a table
    kind = "polynomial"
    exponent = 0.3
"""

import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedraa.arguments import to_path
from fedraa.components.text import KIND
from fedraa.config.usual_names import CALLS, suggest_name
from fedraa.errors import InputError
from fedraa.reading.regular_files import read_regular_file

# Users may mistake these names of callbacks for fields of an experiment.
CALLBACKS = {
    "csv": "csv(path='evals.csv')",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
}


def read_values(path: str | os.PathLike[str], known: Collection[str]) -> dict[str, Any]:
    """Return the values in a TOML file. A component's table becomes a text, such as `polynomial(exponent=0.3)`.

    Raises InputError if the file cannot be read, is not TOML, or contains a name that is not in `known`. The field of
    the error names the file and the option.
    """
    values = read_toml(to_path("config", path), "config")
    check_names(values, known, str(path))
    for name, value in values.items():
        if isinstance(value, dict) and name != "override":
            values[name] = _component_text(f"{path}: {name}", value)
    return values


def read_toml(path: Path, field: str) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises InputError about `field` if the file cannot be read.
    """
    try:
        return tomllib.loads(read_regular_file(path).decode("utf-8-sig"))
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or error}"
        raise InputError(field, problem, got=path, hint="give the path of a TOML file") from None
    except (ValueError, RecursionError) as error:
        # The text is not TOML or has too many nested values, or the bytes are not UTF-8.
        raise InputError(field, f"it is not TOML: {error}", got=path, hint="correct the file") from None


def check_names(names: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Raise InputError for the first name that is not a field of an experiment.

    Args:
        names: The names to check.
        known: The names of the experiment's fields.
        where: The file that contains the names; empty for no file.
    """
    for name in names:
        if name not in known:
            error = unknown_field_error(name, known)
            if where:
                error = error.with_field(f"{where}: {name}")
            raise error


def unknown_field_error(name: str, known: Collection[str]) -> InputError:
    """Return the error about a name that is not a field of an experiment, with a hint."""
    problem = "an experiment has no such field"
    if name in CALLBACKS:
        return InputError(name, problem, hint=f"give callbacks=[{CALLBACKS[name]!r}]")
    if name in CALLS:
        return InputError(name, problem, hint=f"call the function fedraa.{name}")
    return InputError(name, problem, hint=suggest_name(name, known) or "help(fedraa.Experiment) lists all fields")


def _component_text(field: str, table: Mapping[str, Any]) -> str:
    values = dict(table)
    kind = values.pop(KIND, None)
    if not isinstance(kind, str):
        raise InputError(field, got=dict(table), expected=f"a table in which {KIND!r} is a name or an import path")
    if not values:
        return kind
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in values.items())})"
