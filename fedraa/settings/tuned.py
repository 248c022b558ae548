"""The file of `fedraa tune`: for each method the values with which it did best on validation data."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedraa.config.experiment import Experiment
from fedraa.config.file import check_names
from fedraa.reading import content
from fedraa.rundir.atomic_files import write_text

TERMS_KEY = "terms"


def read_tuned(path: Path) -> dict[str, dict[str, Any]]:
    """The fields of an experiment that were tuned, by method.

    ValueError, one sentence, for what is no such file.
    """
    return read_tuned_about(path)[1]


def read_tuned_about(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What the file is about, as `write_tuned` was told, and what `read_tuned` reads."""
    try:
        document = tomllib.loads(content(path).decode())
    except OSError as error:
        raise ValueError(f"tuned: {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise ValueError(f"tuned: {path} is not TOML: {error}") from None
    methods = document.get("methods")
    if not isinstance(methods, dict) or not methods:
        raise ValueError(f"tuned: {path} has no table of methods; it is none of `fedraa tune`")
    found = {}
    for name, told in methods.items():
        terms = told.get(TERMS_KEY) if isinstance(told, dict) else None
        if not isinstance(terms, dict) or not terms:
            raise ValueError(f"tuned: {path} has no {TERMS_KEY} for {name}; it is none of `fedraa tune`")
        check_names(terms, Experiment.model_fields, str(path))
        found[name] = dict(terms)
    return {name: value for name, value in document.items() if name != "methods"}, found


def write_tuned(path: Path, about: Mapping[str, object], methods: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes it: what it is `about`, then for every method its `terms`, and what is told of them."""
    lines = [f"{name} = {_toml(value)}" for name, value in about.items()]
    for name, told in methods.items():
        lines += ["", f"[methods.{json.dumps(name)}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in told.items() if key != TERMS_KEY]
        lines += ["", f"[methods.{json.dumps(name)}.{TERMS_KEY}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in told[TERMS_KEY].items()]
    write_text(path, "\n".join(lines) + "\n")


def _toml(value: object) -> str:
    """Text, numbers, truth values and lists of them: JSON is TOML there."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    assert isinstance(value, str | bool | int | float)
    return json.dumps(value, ensure_ascii=False)
