"""The settings in which compared methods differ, and the methods that have each value."""

from collections.abc import Iterable, Mapping

import pandas as pd

from fedraa.components.text import KIND
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.report.runs import words
from fedraa.settings.resolve import resolve

AXES = ("local", "update", "submodel", "schedule")
COLUMNS = ("setting", "value", "methods")


def settings(method: Method) -> dict[str, str]:
    """Return the resolved method as `choice.value`: its kinds and all values that are set."""
    found: dict[str, str] = {}
    for axis, choice in method.described().items():
        found |= nested(axis, choice)
    return {name: value for name, value in found.items() if value != "–"}


def nested(name: str, value: object) -> dict[str, str]:
    """Return a described choice as a flat mapping."""
    if not isinstance(value, Mapping):
        return {name: words(value)}
    found = {name: str(value.get(KIND, ""))}
    for key, each in value.items():
        found |= nested(f"{name}.{key}", each) if key != KIND else {}
    return found


def differences(experiments: Iterable[tuple[str, Experiment]]) -> pd.DataFrame:
    """Return a row per setting and value that not all experiments share; `methods` lists the labels that have it.

    A setting that several methods have with one value, and that the others lack, follows from their kinds and is left
    out. A label with several experiments, such as the columns of a study, has all of their values. Differences between
    columns that are the same for all labels are left out.
    """
    by_label: dict[str, list[dict[str, str]]] = {}
    for label, experiment in experiments:
        by_label.setdefault(label, []).append(settings(resolve(experiment)))
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
    """Return True if several methods share one value, and the others lack the setting."""
    told = [(values, labels) for values, labels in having.items() if any(values)]
    return len(told) == 1 and len(told[0][1]) > 1


def _place(name: str) -> tuple[int, bool]:
    """Return a sort key: local work first, and kinds before their values."""
    axis = name.partition(".")[0]
    return AXES.index(axis), "." in name
