"""The overview of all settings. It compares Fed-Quilt (default values) with the fastest other method (tuned values)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.studies.race.comparison import (
    CLOSE,
    WITHIN_NOISE,
    Comparison,
    compare_defaults,
    format_endings,
    format_ratio,
    format_times,
)
from benchmarks.studies.race.entrants import OURS
from benchmarks.studies.race.record import SUFFIX, read_record
from benchmarks.studies.race.settings import QUICK, SETTINGS
from benchmarks.studies.tables import markdown_table
from benchmarks.studies.verdict import adjust_holm
from fedraa.numbers import format_count
from fedraa.report.statistics import is_significant

HEADING = ("setting", "target", "best other, tuned", f"{OURS}, defaults", "ratio", "accuracy in the end", "faster")


def format_overview(directory: Path) -> str:
    """Return a page with a row for each setting that has recorded runs in the folder."""
    comparisons = list(_read_comparisons(directory))
    parts = [
        "# The race, all settings",
        f"{OURS}, our method, runs with its defaults: no value is tuned or given. Each of the other methods is tuned "
        "with the same number of trials. The table has the fastest of them. Times are virtual, to the target accuracy, "
        "as the mean over seeds. The ratio is the time of the other method divided by ours: the geometric mean over "
        "the seeds, with its 95 % interval. Both methods have the same seeds, so the ratios are paired. A run that "
        "does not reach the target counts with the time at which it ended: a ratio with `<` or `>` is a bound. The "
        f"accuracy in the end is the mean of the long runs, with their duration, if {OURS} has some with its defaults.",
        markdown_table(HEADING, [_format_row(comparison) for comparison in comparisons]),
        _summarise(comparisons),
    ]
    return "\n\n".join(parts) + "\n"


def _read_comparisons(directory: Path) -> Iterator[Comparison]:
    for setting in (*SETTINGS.values(), QUICK):
        file = directory / f"race_{setting.name}{SUFFIX}"
        if not file.is_file():
            continue
        comparison = compare_defaults(setting, read_record(file, setting.targets))
        if comparison is not None:
            yield comparison


def _format_row(comparison: Comparison) -> list[str]:
    setting = comparison.setting
    return [
        f"[{setting.title}](race_{setting.name}.md)",
        setting.target(setting.targets[-1]),
        f"{format_times(comparison.rival_times, setting)} {comparison.rival}",
        format_times(comparison.our_times, setting),
        format_ratio(comparison),
        format_endings(comparison),
        comparison.faster,
    ]


def _summarise(comparisons: Sequence[Comparison]) -> str:
    faster = [c for c in comparisons if c.faster == OURS]
    slower = [c for c in comparisons if c.faster not in (OURS, WITHIN_NOISE)]
    undecided = len(comparisons) - len(faster) - len(slower)
    settings = format_count(len(comparisons), "setting")
    summary = (
        f"In {len(faster)} of {settings} {OURS} with its defaults is faster than the best other "
        f"method, tuned. In {undecided} the difference is within the noise, and in {len(slower)} it is slower."
    )
    adjusted = adjust_holm([comparison.p_value for comparison in comparisons])
    significant = [c for c, p in zip(comparisons, adjusted, strict=True) if is_significant(p)]
    holm = (
        f"The intervals are not corrected for the number of settings. After Holm's correction for all settings, {OURS} "
        f"is significantly faster in {format_count(sum(c in significant for c in faster), 'setting')}, and slower in "
        f"{sum(c in significant for c in slower)}."
    )
    unsure = [f"- {_describe(c)}" for c in faster if c not in significant]
    losses = [f"- {_describe(c)}" for c in slower]
    ended = [c for c in comparisons if c.best_ending]
    low = [f"- {c.setting.title}: {format_endings(c)}" for c in ended if not c.ends_close]
    endings = (
        f"The accuracy in the end of {OURS} with its defaults is measured in {format_count(len(ended), 'setting')}. In "
        f"{len(ended) - len(low)} of them it is at most {100 * CLOSE:g} points below that of the best other method."
    )
    lists = [
        ("It is faster in these settings only without the correction:", unsure),
        ("It is slower in:", losses),
        ("Its accuracy in the end is lower in:", low),
    ]
    return "\n\n".join([summary, holm, endings, *(f"{head}\n\n" + "\n".join(rows) for head, rows in lists if rows)])


def _describe(comparison: Comparison) -> str:
    return f"{comparison.setting.title}: {comparison.rival}, ratio {format_ratio(comparison)}"
