"""The settings in which compared methods differ."""

from collections.abc import Iterable, Mapping
from itertools import chain

import pandas as pd

from fedraa.components.text import KIND
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.report.runs import value_text
from fedraa.settings.resolve import resolve_method

# The axes of a method in the order of the table.
ROW_ORDER = ("local", "update", "submodel", "schedule")
COLUMNS = ("setting", "value", "methods")


def method_settings(method: Method) -> dict[str, str]:
    """Return the settings of a method, by dotted names such as `schedule.scheduler`."""
    values: dict[str, str] = {}
    for axis, choice in method.described().items():
        values |= flatten_description(axis, choice)
    return {name: value for name, value in values.items() if value != "–"}


def flatten_description(name: str, value: object) -> dict[str, str]:
    """Return the values of a nested description as texts, by dotted name.

    The text of a component is the name of its class.
    """
    if not isinstance(value, Mapping):
        return {name: value_text(value)}
    flat = {name: str(value.get(KIND, ""))}
    for key, part in value.items():
        if key != KIND:
            flat |= flatten_description(f"{name}.{key}", part)
    return flat


def setting_differences(experiments: Iterable[tuple[str, Experiment]]) -> pd.DataFrame:
    """Return a table of the settings that differ, with a row per setting and value.

    The column `methods` lists the methods with this value. Some settings exist only in certain classes of components.
    Such a setting is omitted if all methods that have it have the same value. Each experiment has the name of its
    method. If experiments of one method have different values, one row has all of them, such as `0.1 or 0.2`.
    """
    rows = []
    for name, labels_by_values in _group_labels(experiments).items():
        if _are_equal(labels_by_values):
            continue
        for values, labels in labels_by_values.items():
            if any(values):
                rows.append((name, _join_values(values), ", ".join(labels)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def shared_settings(experiments: Iterable[tuple[str, Experiment]]) -> dict[str, str]:
    """Return the settings that `setting_differences` omits for these experiments, by name."""
    groups = _group_labels(experiments)
    return {name: _join_values(max(groups[name])) for name in groups if _are_equal(groups[name])}


def _group_labels(experiments: Iterable[tuple[str, Experiment]]) -> dict[str, dict[tuple[str, ...], list[str]]]:
    """Return for each setting the names of the methods with the same values, by these values."""
    by_label: dict[str, list[dict[str, str]]] = {}
    for label, experiment in experiments:
        by_label.setdefault(label, []).append(method_settings(resolve_method(experiment)))
    names = dict.fromkeys(chain.from_iterable(chain.from_iterable(by_label.values())))
    groups: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for name in sorted(names, key=_sort_key):
        labels_by_values: dict[tuple[str, ...], list[str]] = {}
        for label, alternatives in by_label.items():
            values = tuple(dict.fromkeys(described.get(name, "") for described in alternatives))
            labels_by_values.setdefault(values, []).append(label)
        groups[name] = labels_by_values
    return groups


def _join_values(values: tuple[str, ...]) -> str:
    return " or ".join(filter(None, values))


def _are_equal(labels_by_values: Mapping[tuple[str, ...], list[str]]) -> bool:
    """Return True if all methods that have the setting have the same value."""
    return len(labels_by_values) == 1 or _follows_from_kind(labels_by_values)


def _follows_from_kind(labels_by_values: Mapping[tuple[str, ...], list[str]]) -> bool:
    """Return True if several methods have the setting, and all of these methods have the same value."""
    labels_with_value = [labels for values, labels in labels_by_values.items() if any(values)]
    return len(labels_with_value) == 1 and len(labels_with_value[0]) > 1


def _sort_key(name: str) -> tuple[int, bool]:
    """Return a key that sorts names of settings in the order of `ROW_ORDER`, each component before its own settings."""
    axis = name.partition(".")[0]
    return ROW_ORDER.index(axis), "." in name
