"""Tables that decide little: methods at chance, and saturated columns."""

from collections.abc import Mapping, Sequence

# A row counts as at chance if (accuracy - chance) / (100 - chance) is below this value.
AT_CHANCE = 0.1
# A column is saturated if all rows are above SATURATED_PERCENT and differ by less than CLOSE_PERCENT.
SATURATED_PERCENT, CLOSE_PERCENT = 90.0, 3.0
ACCURACIES = ("accuracy %", "client accuracy %")

Means = Mapping[tuple[str, str], Sequence[tuple[str, float]]]
"""By column and metric: rows and their mean accuracies, in per cent."""


def weak_points(means: Means, chance: float) -> list[str]:
    """Return a sentence for every column with rows at chance, and for every saturated column."""
    sentences = []
    for (column, metric), rows in means.items():
        where = " at ".join(filter(None, (metric, column)))
        low = [row for row, mean in rows if (mean - chance) / (100 - chance) < AT_CHANCE]
        if low:
            sentences.append(
                f"{where}: at chance ({chance:g} %) or near it: {', '.join(low)}; these have not learnt, and decide "
                "nothing about the methods."
            )
        values = [mean for _, mean in rows]
        if len(values) > 1 and min(values) >= SATURATED_PERCENT and max(values) - min(values) < CLOSE_PERCENT:
            sentences.append(
                f"{where}: saturated, all rows are between {min(values):.1f} and {max(values):.1f} %: an easy task, "
                "which hardly separates them."
            )
    return sentences
