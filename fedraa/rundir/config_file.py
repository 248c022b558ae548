"""Read config.json, the description of a run.

Every run directory and every checkpoint states the number of its format. This version of fedraa refuses other formats,
because their keys may have other meanings.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedraa.errors import InputError
from fedraa.reading.regular_files import read_regular_file

FORMAT = 6
# The required keys of config.json. Their values are JSON objects.
SECTIONS = ("experiment", "method", "resolved", "versions")
# Runs have comparable metrics if these options are the same.
PROBLEM = ("dataset", "objective", "validation")
# The hint of an error about a damaged file of a run directory.
RESTORE = "restore the file from a copy, or start the run again"
KEYS = {*SECTIONS, "format", "given", "commit", "command"}


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a config.json.

    Raises InputError if the file is not the configuration of a run, or it has another format.
    """
    try:
        config = json.loads(read_regular_file(path).decode())
    except OSError as error:
        raise InputError("run", f"{path} cannot be read: {error.strerror or error}", hint=RESTORE) from None
    except (ValueError, RecursionError) as error:
        raise InputError("run", f"{path} is not JSON: {error}", hint=RESTORE) from None
    if not isinstance(config, dict):
        raise InputError("run", f"{path} is not a run's configuration; it is not a JSON object", hint=RESTORE)
    if "format" in config:
        check_format(path, config["format"])
    for key in SECTIONS:
        if not isinstance(config.get(key), dict):
            problem = f"{path} is not a run's configuration; it lacks the object {key!r}"
            raise InputError("run", problem, hint=RESTORE)
    if "format" not in config:
        raise InputError("run", f"{path} is not a run's configuration; it lacks 'format'", hint=RESTORE)
    if "method" not in config["experiment"]:
        raise InputError("run", f"{path} is not a run's configuration; it lacks experiment.method", hint=RESTORE)
    unknown = sorted(config.keys() - KEYS)
    if unknown:
        raise InputError("run", f"{path} has the unknown key {unknown[0]!r}", hint=RESTORE)
    return config


def check_format(path: Path, format: object) -> None:
    """Raise InputError for a format that this version cannot read."""
    if type(format) is not int or format != FORMAT:
        raise InputError(
            "run",
            f"{path} has the format {format!r}, and this version reads only the format {FORMAT}",
            hint="use the version of fedraa that wrote it",
        )


def time_unit(options: Mapping[str, Any]) -> str:
    """Return the unit of a run's clock, `s` or `time units`, from the options in config.json."""
    if options["clock"] == "wall" or options.get("units") == "physical":
        return "s"
    return "time units"


def time_heading(text: str, options: Mapping[str, Any]) -> str:
    """Return `text` as the heading of times, with the unit of the run's clock if it is seconds."""
    unit = time_unit(options)
    return f"{text} ({unit})" if unit == "s" else text


def time_axis_label(options: Mapping[str, Any]) -> str:
    """Return the label of an axis with the time on the run's clock, such as `virtual time (s)`."""
    return time_heading(f"{options['clock']} time", options)
