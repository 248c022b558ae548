"""The command `python -m benchmarks run race`."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.studies.options import RunOptions
from benchmarks.studies.race.entrants import ENTRANTS, FIRST, KNOWN, LENT, LIMIT, OURS, ROUNDS, SHORT, Entrant
from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.page import read_race, write_page
from benchmarks.studies.race.record import SUFFIX, read_record
from benchmarks.studies.race.runs import LONG, PARTS, UNTUNED, Part, Race
from benchmarks.studies.race.settings import QUICK, SETTINGS, Setting
from benchmarks.studies.study import Finished
from fedraa.cli.console import print_line
from fedraa.errors import InputError
from fedraa.rundir.history import History

SEEDS = (0, 1, 2, 3, 4)


def run_race(options: RunOptions) -> None:
    """Execute the missing runs of the study, and write the pages.

    The option `tuned` names a file of tuned values from an earlier study. Methods in this file are not tuned again. The
    option `extend` names the folder of an earlier study. The pages also show the runs of the earlier study, which are
    not repeated.
    """
    settings, entrants, parts = _select_by_options(options)
    seeds = options.seeds or SEEDS
    refused = _refusals(settings, entrants)
    if options.methods and refused:
        (setting_name, entrant_name), reason = next(iter(refused.items()))
        problem = f"{entrant_name} cannot be run in {setting_name}"
        raise InputError("methods", problem, hint=f"leave {entrant_name} out in this setting ({reason})")
    races = []
    for setting in settings:
        values, recorded = _load_earlier(setting, options.tuned, options.extend)
        races.append(Race(setting, options.out / "race", options.data_dir, seeds, options.jobs or 1, values, recorded))
    for one_race in races:
        _check_tuned_values(one_race, "extend" if options.extend else "tuned")
        _check_long(one_race, entrants, parts, asked=bool(options.parts) and not set(parts).isdisjoint(LONG))
        _check_recorded(one_race, entrants, parts)
    command = _command_line(settings, options)
    for one_race in races:
        able = [entrant for entrant in entrants if (one_race.setting.name, entrant.name) not in refused]
        _run_setting(one_race, able, parts, options.out, command)


def _select_by_options(options: RunOptions) -> tuple[list[Setting], list[Entrant], list[Part]]:
    if options.setting and (options.quick or QUICK.name in options.setting):
        problem = f"--quick selects the setting {QUICK.name}"
        raise InputError("setting", problem, got=options.setting, hint="to run it, give --quick and no --setting")
    settings = [QUICK] if options.quick else _select_named("setting", SETTINGS, options.setting)
    known_names = [*ENTRANTS, f"NAME{LENT} and NAME{SHORT} for each entrant NAME except {OURS} and {LIMIT}"]
    names = options.methods
    if not names:
        names = tuple(entrant.name for entrant in (FIRST if options.quick else ENTRANTS.values()))
    entrants = _select_named("methods", KNOWN, names, known_names)
    parts = _select_named("parts", {part: part for part in PARTS}, options.parts)
    if options.tuned and len(settings) > 1:
        hint = f"give one --setting, not {len(settings)}"
        raise InputError("tuned", f"{options.tuned} has the tuned values of one setting only", hint=hint)
    if options.tuned and options.extend:
        problem = f"{options.extend} also has tuned values"
        raise InputError("extend", problem, hint="give --extend or --tuned, not both")
    return settings, entrants, parts


def _refusals(settings: Sequence[Setting], entrants: Sequence[Entrant]) -> dict[tuple[str, str], str]:
    """Return why entrants cannot run in a setting. A key is the setting's name and the entrant's name."""
    reasons = {(s.name, e.name): e.refusal_reason(s) for s, e in product(settings, entrants)}
    return {place: reason for place, reason in reasons.items() if reason is not None}


def _command_line(settings: Sequence[Setting], options: RunOptions) -> str:
    """Return the command that repeats the study, with `DATA` for the folder of the data."""
    command = "python -m benchmarks run race"
    if options.quick:
        command += " --quick"
    else:
        command += f" --setting {' '.join(setting.name for setting in settings)}"
    if options.data_dir:
        command += " --data-dir DATA"
    return command


def _load_earlier(
    setting: Setting, tuned: Path | None, extend: Path | None
) -> tuple[Mapping[str, dict[str, Any]], Sequence[Measured]]:
    """Return the tuned values and the runs of an earlier study in this setting.

    The values are empty if the earlier study had only untuned runs.

    Args:
        setting: The setting.
        tuned: The file of the earlier tuned values.
        extend: The folder of the earlier study's pages.
    """
    if tuned:
        return read_race(tuned, setting), []
    if extend is None:
        return {}, []
    runs = read_record(extend / f"race_{setting.name}{SUFFIX}", setting.targets)
    if all(run.part == "untuned" for run in runs):
        return {}, runs
    try:
        return read_race(extend / f"race_{setting.name}.toml", setting), runs
    except InputError as error:
        if error.field == "tuned":
            error = error.with_field("extend")
        raise error from None


def _check_tuned_values(race: Race, option: str) -> None:
    """Raise InputError if a tuned value is invalid for its entrant."""
    for entrant in KNOWN.values():
        try:
            race.cell(entrant, "tuned")
        except ValueError as error:
            where = f"{entrant.name} in {race.setting.name}"
            raise InputError(option, f"the values of {where} cannot be used: {error}") from None


def _check_recorded(race: Race, entrants: Sequence[Entrant], parts: Sequence[Part]) -> None:
    """Raise InputError if the new page would not contain a recorded run."""
    lost = sorted({run.seed for run in race.recorded} - set(race.seeds))
    if lost:
        raise InputError(
            "seeds",
            f"recorded runs in {race.setting.name} also have the seeds {' '.join(map(str, lost))}",
            got=race.seeds,
            hint="give all recorded seeds",
        )
    again = {entrant.name for entrant in entrants}
    for run in race.outdated_runs():
        if run.entrant not in again or run.part not in parts:
            raise InputError(
                "extend",
                f"the recorded {run.part} runs of {run.entrant} in {race.setting.name} have other values than new runs",
                hint="give --methods and --parts that include these runs",
            )


def _check_long(race: Race, entrants: Sequence[Entrant], parts: Sequence[Part], *, asked: bool) -> None:
    """Raise InputError if long runs are recorded or wanted, but their duration is unknown (see `Race.long_time`).

    Args:
        race: The race in one setting.
        entrants: The entrants of the command.
        parts: The parts of the command.
        asked: True if the option `parts` names long runs.
    """
    has_long = asked or any(run.part in LONG for run in race.recorded)
    is_coming = "tuned" in parts and ENTRANTS[ROUNDS] in entrants
    if has_long and not is_coming and race.long_time() is None:
        raise InputError(
            "seeds",
            f"the duration of long runs in {race.setting.name} depends on tuned runs of {ROUNDS} with all seeds",
            got=race.seeds,
            hint=f"give --methods and --parts that include the tuned runs of {ROUNDS}",
        )


def _run_setting(race: Race, entrants: Sequence[Entrant], parts: Sequence[Part], out: Path, command: str) -> None:
    """Tune and run the entrants in FIRST, then the other entrants. Execute the long runs of all entrants last."""
    started = time.monotonic()

    def log_progress(text: str) -> None:
        print_line(f"{race.setting.name}, {timedelta(seconds=round(time.monotonic() - started))}: {text}")

    def log_run(run: Finished, left: int) -> None:
        result = run.failure
        if not result:
            summary = History(run.directory).summary
            result = f"{summary['reason']} at time {summary['time']:.4g}"
        log_progress(f"{run.cell.row}, {run.cell.column}, seed {run.seed}: {result}; {left} runs of this part to go")

    for group in _first_and_others(entrants):
        if not set(parts) <= set(UNTUNED):
            for entrant in group:
                race.tune(entrant, log_progress)
        for part in parts:
            if part not in LONG:
                race.run(group, part, log_run)
                write_page(race, out, command)
    for part in parts:
        if part in LONG:
            race.run(entrants, part, log_run)
    for sentence in write_page(race, out, command):
        print_line(sentence)
    print_line(f"written to {out / ('race_' + race.setting.name)}.md, and beside it as .csv, .png, .toml and {SUFFIX}")


def _first_and_others(entrants: Sequence[Entrant]) -> list[list[Entrant]]:
    groups = [[e for e in entrants if e in FIRST], [e for e in entrants if e not in FIRST]]
    return [group for group in groups if group]


T = TypeVar("T")


def _select_named(
    option: str, known: Mapping[str, T], names: Sequence[str] | None, shown: Iterable[str] | None = None
) -> list[T]:
    """Return the values of `known` with these names (default: all).

    Args:
        option: The option, for error messages.
        known: All values by name.
        names: The names to select.
        shown: The names that the error message lists (default: the names in `known`).
    """
    for name in names or ():
        if name not in known:
            raise InputError(option, got=name, expected=f"one of {', '.join(shown or known)}")
    return [known[name] for name in names or known]
