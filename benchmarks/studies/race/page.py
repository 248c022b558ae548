"""The files about the study `race` in one setting: page, table, picture, tuned values, and record of the runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.race.comparison import compare_defaults, format_ratio, format_times
from benchmarks.studies.race.entrants import (
    ENTRANTS,
    KNOWN,
    LENT,
    LENT_TO,
    LIMIT,
    OURS,
    ROUNDS,
    SHORT,
    SHORTENED,
    lendable_settings,
)
from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.overview import format_overview
from benchmarks.studies.race.picture import draw_race
from benchmarks.studies.race.record import SUFFIX, write_record
from benchmarks.studies.race.runs import LONG_RUN_FACTOR, TUNING_SEED, Part, Race
from benchmarks.studies.race.settings import Setting
from benchmarks.studies.race.table import (
    describe_findings,
    end_columns,
    format_table,
    format_values,
    group_by_entrant,
    group_with_ours,
    make_columns,
    make_frame,
)
from benchmarks.studies.tables import markdown_table
from fedraa.config.overrides import override_texts, split_paths
from fedraa.errors import InputError
from fedraa.rundir.atomic_files import write_text
from fedraa.settings.tuned import TERMS_KEY, read_tuned_about, write_tuned


def write_page(race: Race, directory: Path, command: str) -> list[str]:
    """Write the files about the ended runs of the study in one setting. Return the findings as sentences.

    The files are race_SETTING.md, .csv, .toml, .png and .runs.jsonl.gz. The overview race.md is written again.

    Args:
        race: The study `race` in one setting.
        directory: The folder for the files.
        command: The command that repeats the study.
    """
    setting, runs, long = race.setting, race.measured(), race.long()
    values = _tuned_values(race)
    variants = list(dict.fromkeys(run.entrant for run in (*runs, *long) if run.entrant not in ENTRANTS))
    source = f"`{command}`"
    if variants:
        source += f", and with `--methods {' '.join(variants)}`"
    source += f", commit {' and '.join(sorted({run.commit for run in (*runs, *long)}))}"
    sentences = [*_describe_defaults(setting, runs), *describe_findings(setting, runs, long)]
    parts = [f"# The race, {setting.title}", _bullets(sentences)]
    headings = {
        "tuned": f"The other methods tuned, each with the same number of trials; {OURS} with its defaults",
        "untuned": "All methods with their defaults",
    }
    for part, heading in headings.items():
        by_entrant = group_with_ours(runs, part)
        if by_entrant:
            parts += [f"## {heading}", format_table(make_columns(setting), by_entrant)]
    long_headings: dict[Part, str] = {"long": "Tuned", "long-untuned": "With its defaults"}
    for long_part, heading in long_headings.items():
        by_entrant = group_by_entrant(long, long_part)
        if by_entrant:
            heading = f"## {heading}, accuracy at time {race.long_time(long_part):g}"
            parts += [heading, format_table(end_columns(setting), by_entrant)]
    notes = list(_format_notes(race))
    if long:
        notes.append(_explain_long(setting))
    if any(name in LENT_TO for name in variants):
        notes.append(_explain_lent(setting))
    if any(name in SHORTENED for name in variants):
        notes.append(f"`NAME{SHORT}` is the method NAME with tasks of one batch, tuned with the same number of trials.")
    parts += ["## Tuned values", _values_table(values), _bullets(notes), source]
    base = directory / f"race_{setting.name}"
    directory.mkdir(parents=True, exist_ok=True)
    rows = make_frame(setting, runs, long, values).to_csv(index=False, float_format="%.6g")
    write_text(base.with_suffix(".csv"), f"# {source}\n{rows}")
    write_record(base.with_suffix(SUFFIX), (*runs, *long))
    write_text(base.with_suffix(".md"), "\n\n".join(parts) + "\n")
    if values:
        terms = {name: {TERMS_KEY: tuned} for name, tuned in values.items() if name in ENTRANTS}
        write_tuned(base.with_suffix(".toml"), _describe_tuning(setting), terms)
    if runs:
        draw_race(setting, runs, base.with_suffix(".png"))
    write_text(directory / "race.md", format_overview(directory))
    return sentences


def _describe_defaults(setting: Setting, runs: Sequence[Measured]) -> Iterator[str]:
    """Yield the sentence that compares the untuned Fed-Quilt to the fastest of the other methods, which are tuned."""
    comparison = compare_defaults(setting, runs)
    if comparison is not None:
        yield (
            f"{setting.target(setting.targets[-1])}: {OURS} with its defaults takes "
            f"{format_times(comparison.our_times, setting)}, and the best other method, tuned, "
            f"{comparison.rival}, {format_times(comparison.rival_times, setting)}: ratio {format_ratio(comparison)}."
        )


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _tuned_values(race: Race) -> dict[str, dict[str, Any]]:
    """Return the values by entrant, without entrants that are not tuned yet."""
    all_values = {name: race.values(entrant) for name, entrant in KNOWN.items()}
    return {name: values for name, values in all_values.items() if values is not None}


def read_race(path: Path, setting: Setting) -> dict[str, dict[str, Any]]:
    """Read the tuned values by entrant from the file of an earlier study in the same setting.

    The entry of Fed-Quilt is for `fedraa compare`. It is not returned.

    Raises InputError if the earlier study had another setting, target, number of trials or search space.
    """
    about, values = read_tuned_about(path)
    for name, expected in _describe_tuning(setting).items():
        if about.get(name) != expected:
            problem = f"{path} has {name} {about.get(name)!r}; the race in {setting.name} has {name} {expected!r}"
            raise InputError("tuned", problem)
    values.pop(OURS, None)
    for name, tuned in values.items():
        if name not in ENTRANTS:
            raise InputError("tuned", f"{path} has values for {name}, which is not an entrant")
        space = ENTRANTS[name].space(setting)
        if tuned.keys() != space.keys():
            raise InputError("tuned", f"{path} has {' '.join(tuned)} for {name}; the race tunes {' '.join(space)}")
    return values


def _describe_tuning(setting: Setting) -> Mapping[str, object]:
    """Return the setting of the race, and the target, search ranges and number of trials of the tuning."""
    tried = {"target": setting.aimed_at, "lr": setting.lr, "local_steps": list(setting.lengths)}
    return {"format": 1, "setting": setting.title, "trials": setting.trials, "seed": TUNING_SEED, **tried}


def _values_table(values: dict[str, dict[str, Any]]) -> str:
    rows = [(name, format_values(tuned)) for name, tuned in values.items() if name != OURS]
    return markdown_table(["method", "best values"], rows)


def _format_notes(race: Race) -> Iterator[str]:
    setting = race.setting
    aimed_at, last = setting.target(setting.aimed_at), setting.target(setting.targets[-1])
    yield (
        f"`fedraa tune` tuned each other method with {setting.trials} trials and the seed {TUNING_SEED}, on a tenth of "
        f"every client's training data. The best trial is the trial that reaches {aimed_at} first. The trials vary the "
        f"learning rate ({setting.lr}), the batches per task ({', '.join(map(str, setting.lengths))}), and one or two "
        f"values of each method. The tables show runs with other seeds: {', '.join(map(str, race.seeds))}."
    )
    yield (
        f"Time 1 is the time in which the slowest device trains the full model for five epochs. Runs end at {last} or "
        f"at time {setting.horizon:g}. A dash means that no run reached the target. Numbers are means ± 95 % intervals."
    )
    yield (
        f"The worst client is measured at the end of the run, which is at {last} if the run reaches this accuracy. MB "
        "count all bytes that clients receive and send, and GFLOP count the training of all clients."
    )
    yield (
        f"`{LIMIT}` is centralised SGD with an averaged model: one client has all data and the compute of all devices, "
        f"and its communication is free. A method can be faster only if its steps differ from SGD steps. `{OURS}` is "
        "the method of this project."
    )
    yield from setting.notes
    if aimed_at == last:
        yield f"The other methods are tuned for {last}, the last target. The tables are sorted by the time to it."


def _explain_long(setting: Setting) -> str:
    """Return the sentence that explains the duration of long runs."""
    text = (
        f"Long runs of tuned methods take {LONG_RUN_FACTOR} times {ROUNDS}'s mean time to the highest target that it "
        f"reaches with each seed, or {LONG_RUN_FACTOR} times {setting.horizon:g} if there is no such target."
    )
    if setting.untuned_share < 1:
        text += f" Those of {OURS} with its defaults take only {setting.untuned_share:g} times as long."
    return text


def _explain_lent(setting: Setting) -> str:
    """Return the sentence that explains names such as `fedavg-lent`: fedavg with settings of Fed-Quilt."""
    fields = split_paths(lendable_settings(setting), {})
    override = " ".join(override_texts(fields.pop("override")))
    flags = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in fields.items())
    flags += f" --override {override}"
    return f"`NAME{LENT}` is the method NAME with the parts of {OURS} that any method can have: `{flags}`."
