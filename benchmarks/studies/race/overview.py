"""A table of all settings that were run: the times to the last target, tuned and untuned."""

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.studies.race.entrants import LENT_TO, LIMIT, OURS, ROUNDS
from benchmarks.studies.race.settings import QUICK, SETTINGS, Setting
from benchmarks.studies.tables import markdown_table
from fedraa.report.statistics import LEVEL, welch_of

HEADING = ("setting", "to", "seeds", "limit", OURS, "best other", "x as fast", "p", "of", ROUNDS)
UNTUNED = (f"{OURS}, untuned", "best other, untuned")


def format_overview(directory: Path) -> str:
    """Return a page with a line per setting that has results, race_SETTING.csv, in `directory`."""
    return "\n\n".join(
        (
            "# The race, all settings",
            "The table has the mean time to an accuracy over the seeds. Each method is tuned with the same number of "
            f"trials. `x as fast` compares {OURS}, the method of this project, with the fastest other method of the "
            f"setting. p is the p-value of Welch's t-test: a difference with p of {LEVEL:g} or more is within the "
            f"noise. The pages of the settings also have methods that use parts of {OURS}. Methods that are not tuned "
            "have their default values.",
            markdown_table((*HEADING, *UNTUNED), _overview_rows(directory)) + "\n",
        )
    )


def _overview_rows(directory: Path) -> Iterator[list[str]]:
    for setting in (*SETTINGS.values(), QUICK):
        file = directory / f"race_{setting.name}.csv"
        if not file.is_file():
            continue
        table = pd.read_csv(file, comment="#")
        level = setting.target(setting.targets[-1])
        times = table[table["figure"] == f"time to {level}"].set_index("entrant")
        tuned, untuned = (times[times["part"] == part] for part in ("tuned", "untuned"))
        if OURS not in tuned.index:
            continue
        rivals = _rank_rivals(tuned)
        yield [
            f"[{setting.title}](race_{setting.name}.md)",
            level,
            str(tuned["n"][OURS]),
            _format_time(setting, tuned, LIMIT),
            _format_time(setting, tuned, OURS),
            *_compare_best(setting, rivals, tuned),
            str(len(rivals)),
            _format_time(setting, tuned, ROUNDS),
            _format_time(setting, untuned, OURS),
            _compare_best(setting, _rank_rivals(untuned), untuned)[0] if OURS in untuned.index else "not run",
        ]


def _rank_rivals(times: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the other methods, the fastest one first."""
    rivals = times.drop([OURS, LIMIT, *LENT_TO], errors="ignore")
    return rivals.sort_values(["reached", "mean"], ascending=[False, True])


def _compare_best(setting: Setting, rivals: pd.DataFrame, times: pd.DataFrame) -> tuple[str, str, str]:
    """Return the fastest other method, the speed of our method relative to it, and the p-value of the difference.

    Args:
        setting: The setting.
        rivals: The rows of the other methods, the fastest first.
        times: The rows of all entrants.
    """
    if rivals.empty:
        return "not run", "–", "–"
    name = str(rivals.index[0])
    text = _format_time(setting, rivals, name)
    if not rivals["reached"].iloc[0]:
        return text, "–", "–"
    ratio = _read_mean(rivals, name) / _read_mean(times, OURS)
    p = welch_of(_read_statistics(times, OURS), _read_statistics(rivals, name))
    return f"{text} {name}", _number_or_dash(ratio, ".2f"), _number_or_dash(p, ".2g")


def _number_or_dash(value: float | None, form: str) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:{form}}"


def _read_statistics(times: pd.DataFrame, entrant: str) -> tuple[float, float | None, int]:
    """Return mean, half width of the interval, and number of runs."""
    half: float | None = float(times["ci95"].to_dict()[entrant])
    if half is not None and math.isnan(half):
        half = None
    return _read_mean(times, entrant), half, int(times["n"].to_dict()[entrant])


def _read_mean(times: pd.DataFrame, entrant: str) -> float:
    return float(times["mean"].to_dict()[entrant])


def _format_time(setting: Setting, times: pd.DataFrame, entrant: str) -> str:
    """Return the mean time to the target, or the number of runs that reached it; `> horizon` if no run did."""
    if entrant not in times.index:
        return "not run"
    time = _read_mean(times, entrant)
    if math.isfinite(time):
        return f"{time:.3f}"
    reached = times["reached"][entrant]
    if not reached:
        return f"> {setting.horizon:g}"
    return f"{reached} of {times['n'][entrant]}"
