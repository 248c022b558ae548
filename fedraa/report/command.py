"""The command that reproduces a run."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedraa.components.imports import importing_only
from fedraa.components.text import is_script_path, paths_in
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import override_texts
from fedraa.config.sections import OutputOptions


def repeat_command(options: Mapping[str, Any], objects: Sequence[str] = ()) -> str:
    """Return the command that repeats a run, or a sentence if this version of fedraa cannot repeat it.

    Custom components are not imported, because they could be any code.

    Args:
        options: The options of the experiment, as in config.json.
        objects: The fields that the user gave as objects, as config.json lists them.
    """
    try:
        with importing_only(()):
            return run_command(Experiment(**options), objects)
    except (TypeError, ValueError) as error:
        return f"# this version cannot repeat the run: {' '.join(str(error).split())}"


def run_command(experiment: Experiment, objects: Sequence[str] = ()) -> str:
    """Return the command `fedraa run ...` that reproduces a run.

    The command has the options that differ from their defaults and change the run. If the run had objects that no
    option can name, the result is a Python call of `fedraa.run`, with `...` in place of each object.

    Args:
        experiment: The experiment of the run.
        objects: The fields that the user gave as objects, as config.json lists them.
    """
    values = _set_values(experiment)
    untypable = [name for name in values if name in objects or not _can_be_typed(name, values[name])]
    untypable += [name for name in objects if name not in values]
    if untypable:
        return _python_call(values, untypable)
    return shlex.join(["fedraa", "run", *_option_words(values)])


def set_options(experiment: Experiment, *, without: Collection[str] = ()) -> str:
    """Return the options of the command line that differ from their defaults and change the run."""
    values = {name: value for name, value in _set_values(experiment).items() if name not in without}
    return shlex.join(_option_words(values))


def _set_values(experiment: Experiment) -> dict[str, Any]:
    return {
        name: value
        for name, value in experiment.model_dump(mode="json").items()
        if name not in OutputOptions.model_fields and experiment.is_set(name)
    }


def _can_be_typed(name: str, value: Any) -> bool:
    """Return True if a command-line option can express the value."""
    if name == "override":
        return all(map(_has_text, value.values()))
    return _has_text(value)


def _has_text(value: Any) -> bool:
    """Return True if a text can describe the value, so that another process can create it again."""
    if isinstance(value, Mapping):
        return False
    if isinstance(value, list):
        return all(map(_has_text, value))
    return not any(map(is_script_path, paths_in(value)))


def _option_words(values: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if Experiment.model_fields[name].annotation is bool:
            words.append(option if value else option.replace("--", "--no-", 1))
        elif name == "override":
            words += [option, *override_texts(value)]
        elif isinstance(value, list):
            words += [option, *map(str, value)]
        else:
            words += [option, str(value)]
    return words


def _python_call(values: Mapping[str, Any], objects: Sequence[str]) -> str:
    arguments = [f"{name}={value!r}" for name, value in values.items() if name not in objects]
    arguments += [f"{name}=..." for name in objects]
    descriptions = ", ".join(f"{name}: {_describe_object(values.get(name))}" for name in objects)
    return f"fedraa.run({', '.join(arguments)})  # objects of the run: {descriptions}"


def _describe_object(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name") or value.get("kind"))
    if isinstance(value, list):
        return " ".join(map(_describe_object, value))
    return str(value).partition(" (given as an object)")[0]
