"""All settings that were run, in one table: who is at the last target first, tuned against tuned, and untuned."""

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


def overview(directory: Path) -> str:
    """A line per setting that has results, race_SETTING.csv, in `directory`."""
    return "\n\n".join(
        (
            "# The race, all settings",
            f"Time to an accuracy, mean over seeds; each is tuned with as many trials. `x as fast` is {OURS}, our own, "
            "against the best of so many others that were run there; p is of Welch's t-test, from "
            f"{LEVEL:g} on it is within the noise. Rivals to which parts of ours were lent are on the settings' pages. "
            "Untuned is with the methods' defaults.",
            markdown_table((*HEADING, *UNTUNED), _lines(directory)) + "\n",
        )
    )


def _lines(directory: Path) -> Iterator[list[str]]:
    for setting in (*SETTINGS.values(), QUICK):
        if not (file := directory / f"race_{setting.name}.csv").is_file():
            continue
        table = pd.read_csv(file, comment="#")
        level = setting.target(setting.targets[-1])
        times = table[table["figure"] == f"time to {level}"].set_index("entrant")
        found, untuned = (times[times["part"] == part] for part in ("tuned", "untuned"))
        if OURS not in found.index:
            continue
        others = _others(found)
        yield [
            f"[{setting.title}](race_{setting.name}.md)",
            level,
            str(found["n"][OURS]),
            _told(setting, found, LIMIT),
            _told(setting, found, OURS),
            *_best(setting, others, found),
            str(len(others)),
            _told(setting, found, ROUNDS),
            _told(setting, untuned, OURS),
            _best(setting, _others(untuned), untuned)[0] if OURS in untuned.index else "not run",
        ]


def _others(found: pd.DataFrame) -> pd.DataFrame:
    """All but ours, who is there first first."""
    others = found.drop([OURS, LIMIT, *LENT_TO], errors="ignore")
    return others.sort_values(["reached", "mean"], ascending=[False, True])


def _best(setting: Setting, others: pd.DataFrame, found: pd.DataFrame) -> tuple[str, str, str]:
    """The first of the others, how many times as fast ours is, and whether that is more than noise."""
    if others.empty:
        return "not run", "–", "–"
    name = str(others.index[0])
    if not others["reached"].iloc[0]:
        return _told(setting, others, name), "–", "–"
    times, p = _mean(others, name) / _mean(found, OURS), welch_of(_figures(found, OURS), _figures(others, name))
    quotient = f"{times:.2f}" if math.isfinite(times) else "–"
    return f"{_told(setting, others, name)} {name}", quotient, "–" if p is None else f"{p:.2g}"


def _figures(found: pd.DataFrame, entrant: str) -> tuple[float, float | None, int]:
    """Mean, interval and how many."""
    half = float(found["ci95"].to_dict()[entrant])
    return _mean(found, entrant), None if math.isnan(half) else half, int(found["n"].to_dict()[entrant])


def _mean(found: pd.DataFrame, entrant: str) -> float:
    return float(found["mean"].to_dict()[entrant])


def _told(setting: Setting, found: pd.DataFrame, entrant: str) -> str:
    """When it is there; if not in every run, in how many, or that it is later than all were given."""
    if entrant not in found.index:
        return "not run"
    if math.isfinite(time := _mean(found, entrant)):
        return f"{time:.3f}"
    there = found["reached"][entrant]
    return f"{there} of {found['n'][entrant]}" if there else f"> {setting.horizon:g}"
