"""`python -m benchmarks run race`: who is at an accuracy first, tuned against tuned."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.studies.race.entrants import ENTRANTS, FIRST, KNOWN, LENT, LIMIT, OURS, ROUNDS, Entrant
from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.page import read_race, write
from benchmarks.studies.race.record import SUFFIX, read_record
from benchmarks.studies.race.runs import PARTS, Part, Race
from benchmarks.studies.race.settings import QUICK, SETTINGS, Setting
from benchmarks.studies.study import Finished
from fedraa.cli.display import say
from fedraa.errors import InputError
from fedraa.rundir.history import History

SEEDS, QUICK_SEEDS = (0, 1, 2, 3, 4), (0, 1, 2)


def race(
    names: Sequence[str] | None,
    methods: Sequence[str] | None,
    parts: Sequence[str] | None,
    *,
    quick: bool,
    data_dir: Path | None,
    out: Path,
    seeds: tuple[int, ...] | None,
    jobs: int | None,
    tuned: Path | None = None,
    extend: Path | None = None,
) -> None:
    """Runs what has not ended, setting by setting, and writes each one's page anew as soon as a part has.

    `tuned` is the file of an earlier race in one setting: whoever is in it is not tuned again. `extend` is the folder
    of an earlier race's pages: nor is what was run there made again, but on the pages.
    """
    settings = [QUICK] if quick else _named("setting", SETTINGS, names)
    asked = methods or [entrant.name for entrant in (FIRST if quick else ENTRANTS.values())]
    entrants = _named("methods", KNOWN, asked, [*ENTRANTS, f"NAME{LENT} for each but {OURS} and {LIMIT}"])
    chosen = _named("parts", {part: part for part in PARTS}, parts)
    if quick and names:
        raise InputError("setting", "the quick race has one already", got=names, hint="leave it out")
    if tuned and len(settings) > 1:
        raise InputError("tuned", f"{tuned} is of one setting", hint=f"give one --setting, not {len(settings)}")
    if tuned and extend:
        raise InputError("extend", f"{extend} has the tuned values as well", hint="give it or --tuned, not both")
    earlier = {s.name: _earlier(s, tuned, extend) for s in settings}
    command = [
        "python -m benchmarks run race",
        "--quick" if quick else f"--setting {' '.join(s.name for s in settings)}",
    ]
    command += ["--data-dir DATA"] if data_dir else []
    refused = {(s.name, e.name): why for s in settings for e in entrants if (why := e.refusal(s)) is not None}
    if methods and refused:
        (where, who), why = next(iter(refused.items()))
        raise InputError("methods", f"{who} cannot be run in {where}", hint=f"leave it out there ({why})")
    shown = seeds or (QUICK_SEEDS if quick else SEEDS)
    data = data_dir.absolute() if data_dir else None
    races = [Race(s, out / "race", data, shown, jobs or 1, *earlier[s.name]) for s in settings]
    for each in races:
        _check_values(each, "extend" if extend else "tuned")
        _check_recorded(each, entrants, chosen)
    for each in races:
        can = [entrant for entrant in entrants if (each.setting.name, entrant.name) not in refused]
        _run(each, can, chosen, out, " ".join(command))


def _earlier(
    setting: Setting, tuned: Path | None, extend: Path | None
) -> tuple[Mapping[str, dict[str, Any]], Sequence[Measured]]:
    """What an earlier race has of this setting: the tuned values, none where all its runs are of defaults, and runs."""
    if extend is None:
        return read_race(tuned, setting) if tuned else {}, []
    runs = read_record(extend / f"race_{setting.name}{SUFFIX}", setting.targets)
    tuned_there = any(run.part != "untuned" for run in runs)
    return read_race(extend / f"race_{setting.name}.toml", setting) if tuned_there else {}, runs


def _check_values(race: Race, given_by: str) -> None:
    """Raise InputError, before anything runs, for tuned values that an entrant cannot have."""
    for entrant in KNOWN.values():
        try:
            race.cell(entrant, "tuned")
        except ValueError as error:
            where = f"{entrant.name} in {race.setting.name}"
            raise InputError(given_by, f"the values of {where} cannot be used: {error}") from None


def _check_recorded(race: Race, entrants: Sequence[Entrant], parts: Sequence[Part]) -> None:
    """Raise InputError if a recorded run would be missing on the new page and not run again."""
    if lost := sorted({run.seed for run in race.recorded} - set(race.seeds)):
        raise InputError(
            "seeds",
            f"runs in {race.setting.name} are recorded with {' '.join(map(str, lost))} as well",
            got=race.seeds,
            hint="give all of them",
        )
    again = {entrant.name for entrant in entrants}
    has_long = any(run.part == "long" for run in race.recorded)
    if has_long and race.long_time() is None and not (ROUNDS in again and "tuned" in parts):
        raise InputError(
            "seeds",
            f"the length of the long runs recorded in {race.setting.name} follows from the runs of {ROUNDS}",
            got=race.seeds,
            hint=f"let {ROUNDS} run with these seeds, by --methods and --parts",
        )
    for run in race.strange():
        if run.entrant not in again or run.part not in parts:
            raise InputError(
                "extend",
                f"the {run.part} runs of {run.entrant} recorded in {race.setting.name} have other values",
                hint="let it run again, by --methods and --parts",
            )


def _run(race: Race, entrants: Sequence[Entrant], parts: Sequence[Part], out: Path, command: str) -> None:
    """Those that are first to their end, then the others; long runs last."""
    started = time.monotonic()

    def told(what: str) -> None:
        say(f"{race.setting.name}, {timedelta(seconds=round(time.monotonic() - started))}: {what}")

    def watch(run: Finished, left: int) -> None:
        came = (
            run.failure
            or f"{History(run.directory).summary['reason']} at time {History(run.directory).summary['time']:.4g}"
        )
        told(f"{run.cell.row}, {run.cell.column}, seed {run.seed}: {came}; {left} runs of this part to go")

    for group in _groups(entrants):
        for entrant in group if parts != ["untuned"] else ():
            race.tune(entrant, told)
        for part in parts:
            if part != "long":
                race.run(group, part, watch)
                write(race, out, command)
    if "long" in parts:
        race.run(entrants, "long", watch)
    for sentence in write(race, out, command):
        say(sentence)
    say(f"written to {out / ('race_' + race.setting.name)}.md, and beside it as .csv, .png, .toml and {SUFFIX}")


def _groups(entrants: Sequence[Entrant]) -> list[list[Entrant]]:
    groups = [[e for e in entrants if e in FIRST], [e for e in entrants if e not in FIRST]]
    return [group for group in groups if group]


T = TypeVar("T")


def _named(
    what: str, known: Mapping[str, T], names: Sequence[str] | None, told: Iterable[str] | None = None
) -> list[T]:
    """Return the values with these names, or all; the error lists `told`, or the known names."""
    for name in names or ():
        if name not in known:
            raise InputError(what, got=name, expected=f"one of {', '.join(told or known)}")
    return [known[name] for name in names or known]
