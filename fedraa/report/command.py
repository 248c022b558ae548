"""The command that reproduces a run."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedraa.components.text import paths_in
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import override_texts
from fedraa.config.sections import OutputOptions


def run_command(experiment: Experiment, objects: Sequence[str] = ()) -> str:
    """Return the command that reproduces a run: `fedraa run` with every flag that is not at its default.

    Flags about the output are omitted, because they do not change a run.
    For objects that no flag can name, the result is a call of `fedraa.run` from Python, with `...` in the place of each
    object and a comment that describes it.

    Args:
        experiment: The experiment of the run.
        objects: The fields that the user gave as objects, as config.json lists them.
    """
    values = {
        name: value
        for name, value in experiment.model_dump(mode="json").items()
        if name not in OutputOptions.model_fields and getattr(experiment, name) != Experiment.model_fields[name].default
    }
    without_flag = [name for name in values if name in objects or not _can_be_typed(name, values[name])]
    without_flag += [name for name in objects if name not in values]
    if without_flag:
        return _python_call(values, without_flag)
    return _shell_command(values)


def _can_be_typed(name: str, value: Any) -> bool:
    """Return True if the flag of this field can hold the value."""
    if name == "override":
        return all(map(_is_flag, value.values()))
    return _is_flag(value)


def _is_flag(value: Any) -> bool:
    """Return True if another process can make an equal value from the text of a flag."""
    if isinstance(value, Mapping):
        return False
    if isinstance(value, list):
        return all(map(_is_flag, value))
    return not any("<" in path or path.startswith("__main__:") for path in paths_in(value))


def _shell_command(values: Mapping[str, Any]) -> str:
    words = ["fedraa", "run"]
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if Experiment.model_fields[name].annotation is bool:
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif name == "override":
            words += [flag, *override_texts(value)]
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return shlex.join(words)


def _python_call(values: Mapping[str, Any], objects: Sequence[str]) -> str:
    arguments = [f"{name}={value!r}" for name, value in values.items() if name not in objects]
    arguments += [f"{name}=..." for name in objects]
    descriptions = ", ".join(f"{name}: {_describe_object(values.get(name))}" for name in objects)
    return f"fedraa.run({', '.join(arguments)})  # objects of the run: {descriptions}"


def _describe_object(value: Any) -> str:
    """Return a short description of an object."""
    if isinstance(value, Mapping):
        return str(value.get("name") or value.get("kind"))
    if isinstance(value, list):
        return " ".join(map(_describe_object, value))
    return str(value).partition(" (given as an object)")[0]
