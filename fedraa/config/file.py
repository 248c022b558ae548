"""Experiments from configuration files: TOML, with the fields of an experiment as its keys.

method = "fed-raa"
hidden = [200, 100]
updates = 400
scheduler = "my_ext:HighestLoss(patience=3)"

[staleness]            # the same, as a table
kind = "polynomial"
exponent = 0.3
"""

import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedraa.components.text import KIND
from fedraa.config.usual_names import CALLS, meant
from fedraa.errors import short_text
from fedraa.reading import content

# How the built-in callbacks are given that users look for among the fields.
CALLBACKS = {
    "csv": "csv(path='evals.csv')",
    "tensorboard": "tensorboard(directory='logs')",
    "wandb": "wandb(project='NAME')",
}


def read_values(path: str | os.PathLike[str], known: Collection[str]) -> dict[str, Any]:
    """The values in this file, a component always as text; ValueError, one sentence, if it has a key that is not known.

    The sentence names the file and the key, as all do that this raises.
    """
    values = _read(Path(path))
    check_names(values, known, str(path))
    try:
        return {name: _text(value) if isinstance(value, dict) else value for name, value in values.items()}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_names(names: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise ValueError, one sentence, for a name that is no field of an experiment."""
    for name in names:
        if name in CALLBACKS:
            raise ValueError(f"{where}: {name!r} is no field of an experiment; give callbacks=[{CALLBACKS[name]!r}]")
        if name in CALLS and name not in known:
            raise ValueError(f"{where}: {name!r} is no field of an experiment, but a function, fedraa.{name}")
        if name not in known:
            raise ValueError(f"{where}: {name!r} is no field of an experiment{meant(name, known)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(content(path).decode())
    except OSError as error:
        raise ValueError(f"config: {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise ValueError(f"config: {path} is not TOML: {error}") from None


def _text(table: Mapping[str, Any]) -> str:
    """A table as the text of the component that it means: `kind(name=value, ...)`."""
    values = dict(table)
    kind = values.pop(KIND, None)
    if not isinstance(kind, str):
        raise ValueError(f"the table {short_text(dict(table))} has no {KIND!r}, the name or import path of a component")
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in values.items())})" if values else kind
