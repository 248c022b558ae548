"""The file that `fedraa tune` writes, with the best values of each method on validation data."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedraa.config.experiment import Experiment
from fedraa.config.file import check_names, read_toml
from fedraa.config.overrides import flat_table
from fedraa.errors import InputError, RunWarning
from fedraa.rundir.atomic_files import escape_bytes, write_text

TERMS_KEY = "terms"


def read_tuned(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tuned fields by method. Raise InputError if the file has no tuned fields."""
    return read_tuned_about(path)[1]


def read_tuned_about(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the file's entries about the search, such as `trials`, and the tuned values of each method.

    The name of a tuned value is a field of the experiment, or a path such as `update.mu`.
    """
    document = read_toml(path, "tuned")
    methods = document.get("methods")
    if not isinstance(methods, dict) or not methods:
        raise InputError("tuned", "it has no table of methods", got=path, hint="give a file of `fedraa tune`")
    tuned = {}
    for name, table in methods.items():
        terms = None
        if isinstance(table, dict):
            terms = table.get(TERMS_KEY)
        if not isinstance(terms, dict) or not terms:
            problem = f"it has no {TERMS_KEY} for {name}"
            raise InputError("tuned", problem, got=path, hint="give a file of `fedraa tune`")
        tuned[name] = dict(flat_table(terms))
        check_names((term for term in tuned[name] if "." not in term), Experiment.model_fields, str(path))
    return {name: value for name, value in document.items() if name != "methods"}, tuned


def warn_of_other_data(path: Path, about: Mapping[str, Any], used: str) -> None:
    """Warn if the values in the file were tuned on another data set.

    Args:
        path: The file of `fedraa tune`.
        about: The file's entries about the search.
        used: The data set of the comparison: its name or its file.
    """
    dataset = about.get("dataset")
    if dataset is not None and Path(str(dataset)).name != Path(escape_bytes(used)).name:
        problem = f"its values were tuned on {dataset}, but this comparison uses {used}; tune the methods on {used}"
        warnings.warn(f"tuned: {path}: {problem}", RunWarning, stacklevel=2)


def write_tuned(path: Path, about: Mapping[str, object], methods: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file of `fedraa tune`.

    Args:
        path: The file.
        about: The entries about the search, such as the data set and the number of trials.
        methods: The entries of every method. The entry `terms` is a mapping and becomes a table.
    """
    lines = [f"{name} = {_format_toml(value)}" for name, value in about.items()]
    for name, table in methods.items():
        lines += ["", f"[methods.{json.dumps(name)}]"]
        lines += [f"{key} = {_format_toml(value)}" for key, value in table.items() if key != TERMS_KEY]
        lines += ["", f"[methods.{json.dumps(name)}.{TERMS_KEY}]"]
        lines += [f"{key} = {_format_toml(value)}" for key, value in table[TERMS_KEY].items()]
    write_text(path, "\n".join(lines) + "\n")


def _format_toml(value: object) -> str:
    """Convert text, a number, a boolean or a list of these to TOML."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_toml, value)) + "]"
    assert isinstance(value, str | bool | int | float)
    return json.dumps(escape_bytes(value) if isinstance(value, str) else value, ensure_ascii=False)
