"""Tables that say little: methods at chance, and columns in which all are as good as they get."""

from collections.abc import Mapping, Sequence

AT_CHANCE = 0.1  # share of what there is to learn: (accuracy - chance) / (100 - chance)
HIGH, CLOSE = 90.0, 3.0  # per cent: a column above HIGH that spans less than CLOSE orders nobody
ACCURACIES = ("accuracy %", "client accuracy %")

Means = Mapping[tuple[str, str], Sequence[tuple[str, float]]]
"""By column and metric: rows and their mean accuracies, in per cent."""


def weak_points(means: Means, chance: float) -> list[str]:
    """A sentence for every column in which rows are at chance, or in which all rows are saturated."""
    told = []
    for (column, metric), rows in means.items():
        where = f"{metric}{f' at {column}' if column else ''}"
        low = [row for row, mean in rows if (mean - chance) / (100 - chance) < AT_CHANCE]
        if low:
            told.append(
                f"{where}: at chance ({chance:g} %) or near it: {', '.join(low)}; these have not learnt, and say "
                "nothing of the methods."
            )
        values = [mean for _, mean in rows]
        if len(values) > 1 and min(values) >= HIGH and max(values) - min(values) < CLOSE:
            told.append(
                f"{where}: saturated, all rows are between {min(values):.1f} and {max(values):.1f} %: an easy task, "
                "which hardly tells them apart."
            )
    return told
