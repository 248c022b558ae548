"""Numbers that cannot show a difference between methods, called weak.

An accuracy is weak if it is near chance level, or if all accuracies of its column are near 100 %. A time to a target is
weak if no run reached the target.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

SATURATED, AT_CHANCE, NOT_REACHED = "saturated", "at chance", "target not reached"
# A row is at chance if (accuracy - chance) / (100 - chance) is below this value.
CHANCE_MARGIN = 0.1
# A column is saturated if all rows are above SATURATED_PERCENT and differ by less than CLOSE_PERCENT.
SATURATED_PERCENT, CLOSE_PERCENT = 90.0, 3.0

Means = Mapping[tuple[str, str], Sequence[tuple[str, float]]]
"""Rows and their mean accuracies in per cent, by column and metric."""


def is_accuracy(metric: str) -> bool:
    """Return True if the metric with this name is a test accuracy."""
    return metric.startswith(("accuracy %", "client accuracy %"))


def group_accuracies(numbers: Iterable[tuple[str, str, str, float]]) -> Means:
    """Return the mean accuracies by column and metric. A mean that is NaN is omitted.

    `numbers` has the row, the column, the metric and the mean of each number of a table.
    """
    by_column: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for row, column, metric, mean in numbers:
        if is_accuracy(metric) and not math.isnan(mean):
            by_column.setdefault((column, metric), []).append((row, mean))
    return by_column


def find_weak(means: Means, chance: float) -> dict[tuple[str, str, str], str]:
    """Return the numbers that cannot show a difference, by row, column and metric, with the reason for each.

    A reason is `AT_CHANCE` or `SATURATED`. `chance` is the accuracy of a uniform guess, in per cent.
    """
    weak: dict[tuple[str, str, str], str] = {}
    for (column, metric), rows in means.items():
        if _is_saturated([mean for _, mean in rows]):
            weak |= {(row, column, metric): SATURATED for row, _ in rows}
        low = [row for row, mean in rows if _is_at_chance(mean, chance)]
        weak |= {(row, column, metric): AT_CHANCE for row in low}
    return weak


def weak_points(means: Means, chance: float) -> list[str]:
    """Return a sentence for every column in which rows are near chance level, or all rows are near 100 %."""
    sentences = []
    for (column, metric), rows in means.items():
        where = " at ".join(filter(None, (metric, column)))
        low = [row for row, mean in rows if _is_at_chance(mean, chance)]
        if low:
            sentences.append(
                f"{where}: at chance ({chance:g} %) or near it: {', '.join(low)}. These rows have learned almost "
                "nothing, so they do not show a difference between the methods."
            )
        values = [mean for _, mean in rows]
        if _is_saturated(values):
            sentences.append(
                f"{where}: saturated, all rows are between {min(values):.1f} and {max(values):.1f} %. The task is too "
                "easy to separate the methods."
            )
    return sentences


def _is_at_chance(mean: float, chance: float) -> bool:
    return (mean - chance) / (100 - chance) < CHANCE_MARGIN


def _is_saturated(values: Sequence[float]) -> bool:
    return len(values) > 1 and min(values) >= SATURATED_PERCENT and max(values) - min(values) < CLOSE_PERCENT
