"""A setting's race on disk: table, words and picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.studies.race.entrants import ENTRANTS, KNOWN, LENT, LENT_TO, LIMIT, OURS, ROUNDS, parts_of_ours
from benchmarks.studies.race.overview import overview
from benchmarks.studies.race.picture import draw
from benchmarks.studies.race.record import SUFFIX, write_record
from benchmarks.studies.race.runs import LONG, TUNING_SEED, Race
from benchmarks.studies.race.settings import Setting
from benchmarks.studies.race.table import columns, end_columns, findings, frame, markdown, of_part, said
from fedraa.config.overrides import override_texts, split_paths
from fedraa.errors import InputError
from fedraa.rundir.atomic_files import write_text
from fedraa.settings.tuned import TERMS_KEY, read_tuned_about, write_tuned


def write(race: Race, directory: Path, command: str) -> list[str]:
    """Writes race_SETTING.md, .csv, .toml and .png into `directory`, of what has ended; returns the findings.

    And race_SETTING.runs.jsonl.gz, all these runs, and race.md, of all the settings there.
    """
    setting, runs, long = race.setting, race.measured(), race.long()
    values = {name: found for name, entrant in KNOWN.items() if (found := race.values(entrant)) is not None}
    told = findings(setting, runs, long)
    helped = list(dict.fromkeys(run.entrant for run in (*runs, *long) if run.entrant in LENT_TO))
    command = f"`{command}`" + (f", and with `--methods {' '.join(helped)}`" if helped else "")
    made = f"{command}, commit {' and '.join(sorted({run.commit for run in (*runs, *long)}))}"
    parts = [f"# The race, {setting.title}", "\n".join(f"- {sentence}" for sentence in told)]
    for part, heading in (("tuned", "Tuned, each with as many trials"), ("untuned", "Defaults, nothing tuned")):
        if of := of_part(runs, part):
            parts += [f"## {heading}", markdown(columns(setting), of)]
    if of := of_part(long, "long"):
        parts += [f"## Tuned, at time {race.long_time():g}, {LONG} x {ROUNDS}'s", markdown(end_columns(setting), of)]
    notes = [*_notes(race), *([_lent(setting)] if helped else [])]
    parts += ["## What was tuned", _values(values), "\n".join(f"- {note}" for note in notes), made]
    base = directory / f"race_{setting.name}"
    directory.mkdir(parents=True, exist_ok=True)
    rows = frame(setting, runs, long, values).to_csv(index=False, float_format="%.6g")
    write_text(base.with_suffix(".csv"), f"# {made}\n{rows}")
    write_record(base.with_suffix(SUFFIX), (*runs, *long))
    write_text(base.with_suffix(".md"), "\n\n".join(parts) + "\n")
    if values:
        terms = {name: {TERMS_KEY: found} for name, found in values.items() if name in ENTRANTS}
        write_tuned(base.with_suffix(".toml"), _about(setting), terms)
    if runs:
        draw(setting, runs, base.with_suffix(".png"))
    write_text(directory / "race.md", overview(directory))
    return told


def read_race(path: Path, setting: Setting) -> dict[str, dict[str, Any]]:
    """What was tuned, by entrant, in the race in this setting that wrote the file.

    Raises InputError for a file of another race, because its methods were not tuned on equal terms.
    """
    told, values = read_tuned_about(path)
    for name, asked in _about(setting).items():
        if told.get(name) != asked:
            raise InputError("tuned", f"{path} has {name} {told.get(name)!r}; the race in {setting.name} has {asked!r}")
    for name, found in values.items():
        space = ENTRANTS[name].space(setting).keys() if name in ENTRANTS else set()
        if found.keys() != space:
            own = f"{' '.join(space)} are tuned" if space else "it takes no part"
            raise InputError("tuned", f"{path} has {' '.join(found)} for {name}; {own}")
    return values


def _about(setting: Setting) -> Mapping[str, object]:
    tried = {"target": setting.aimed_at, "lr": setting.lr, "local_steps": list(setting.lengths)}
    return {"format": 1, "dataset": setting.title, "trials": setting.trials, "seed": TUNING_SEED, **tried}


def _values(values: dict[str, dict[str, object]]) -> str:
    rows = [f"| {name} | {said(found)} |" for name, found in values.items()]
    return "\n".join(["| entrant | best values |", "|---|---|", *rows])


def _notes(race: Race) -> tuple[str, ...]:
    """How it was made, for who doubts it."""
    setting = race.setting
    aimed_at, last = setting.target(setting.aimed_at), setting.target(setting.targets[-1])
    return (
        f"Each was tuned by `fedraa tune`, {setting.trials} trials for each, on a tenth of every client's training "
        f"data, seed {TUNING_SEED}: the best is the first at {aimed_at}. Learning rate "
        f"{setting.lr}, batches per task {', '.join(map(str, setting.lengths))}, and own values. Seeds "
        f"{', '.join(map(str, race.seeds))} of the runs shown were never seen.",
        f"Time 1 is what the slowest device takes for five epochs on the full model. Runs end at "
        f"{last} or at time {setting.horizon:g}; – is not there. Mean ± 95 % interval.",
        f"The worst client is that at the end of the run, so of {last} where that is "
        "reached. MB are both ways, of all clients; GFLOP those of training.",
        f"{LIMIT} is centralised SGD with an averaged model: one client with all data and all devices' compute, free "
        f"communication. No method can be faster but by other steps. {OURS} is ours.",
        *setting.notes,
        *([f"Values are tuned for {last}, the last target, of which the table speaks."] if aimed_at == last else []),
    )


def _lent(setting: Setting) -> str:
    """Return the sentence about the methods that were run with values of ours."""
    fields = split_paths(parts_of_ours(setting), {})
    override = " ".join(override_texts(fields.pop("override")))
    flags = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in fields.items())
    flags += f" --override {override}"
    return f"NAME{LENT} is NAME with those parts of {OURS} that any method can have, `{flags}`."
