"""What still differs between methods that are compared: the settings of their choices, and who has which value."""

from collections.abc import Iterable, Mapping

import pandas as pd

from fedraa.components.text import KIND
from fedraa.config.experiment import Experiment
from fedraa.report.runs import words
from fedraa.settings.resolve import resolve

AXES = ("local", "update", "submodel", "schedule")
COLUMNS = ("setting", "value", "methods")


def settings(experiment: Experiment) -> dict[str, str]:
    """The method as it will run, as `choice.value`: its kinds, and all values that are set."""
    found: dict[str, str] = {}
    for axis, choice in resolve(experiment).described().items():
        found |= nested(axis, choice)
    return {name: value for name, value in found.items() if value != "–"}


def nested(name: str, value: object) -> dict[str, str]:
    """A described choice, flat."""
    if not isinstance(value, Mapping):
        return {name: words(value)}
    found = {name: str(value.get(KIND, ""))}
    for key, each in value.items():
        found |= nested(f"{name}.{key}", each) if key != KIND else {}
    return found


def differences(experiments: Iterable[tuple[str, Experiment]]) -> pd.DataFrame:
    """A row per setting and value, with those that have it, where not all have the same; `methods` are their labels.

    What several have, all of them with one value, and others have not, follows from the kinds, and is not told. A label
    that comes with several experiments, as in the columns of a study, has every value of theirs; what differs from
    column to column alone, and there for all alike, is not told.
    """
    by_label: dict[str, list[dict[str, str]]] = {}
    for label, experiment in experiments:
        by_label.setdefault(label, []).append(settings(experiment))
    names = dict.fromkeys(name for several in by_label.values() for each in several for name in each)
    rows = []
    for name in sorted(names, key=_place):
        having: dict[tuple[str, ...], list[str]] = {}
        for label, several in by_label.items():
            values = tuple(dict.fromkeys(each.get(name, "") for each in several))
            having.setdefault(values, []).append(label)
        if len(having) > 1 and not _follows(having):
            said = [(" or ".join(filter(None, values)), ", ".join(labels)) for values, labels in having.items()]
            rows += [(name, value, labels) for value, labels in said if value]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _follows(having: Mapping[tuple[str, ...], list[str]]) -> bool:
    """Whether several have one value, and the others have no such setting."""
    told = [(values, labels) for values, labels in having.items() if any(values)]
    return len(told) == 1 and len(told[0][1]) > 1


def _place(name: str) -> tuple[int, bool]:
    """Local work first, kinds before their values."""
    axis = name.partition(".")[0]
    return AXES.index(axis), "." in name
