"""What a run goes on as: its own experiment, what has to be given again, and limits that may be larger than before."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedraa.components import imported, is_path
from fedraa.config.experiment import Experiment
from fedraa.config.file import check_names
from fedraa.data import Dataset
from fedraa.engine.build import build
from fedraa.engine.description import ASIDE_KEY, describe
from fedraa.engine.run_spec import RunSpec
from fedraa.objectives import Target
from fedraa.rundir.files import write_text
from fedraa.rundir.history import History
from fedraa.rundir.layout import CONFIG, EVENTS, MODEL, SUMMARY
from fedraa.rundir.lock import is_written
from fedraa.rundir.profile import PROFILE
from fedraa.rundir.schema import FORMAT

# The limits that a longer run may change, and what they are called among those resolved and as the reason of an end.
LIMITS = {"updates": "steps", "rounds": "steps", "time": "time", "target_accuracy": "accuracy", "target": "target"}


def resumed(
    directory: Path, model: nn.Module | None, dataset: Dataset | None, fields: Mapping[str, Any]
) -> tuple[RunSpec, bool]:
    """The run in this directory as it goes on, and whether it is made longer by the limits among `fields`.

    All other `fields` are components given again, the same as before. Raises ValueError, one sentence, for a run that
    has ended and is not made longer, that lacks something, or that was of something else.
    """
    history = History(directory)
    config = history.config
    check_names(fields, Experiment.model_fields, "resume")
    longer = {name: value for name, value in fields.items() if name in LIMITS}
    if not longer and (directory / SUMMARY).exists():
        raise ValueError(
            f"run: {directory} has ended; there is nothing to go on with; make it longer by a larger --updates, "
            "--rounds, --time, --target-accuracy or --target"
        )
    _check_given(directory, config, {"model": model, "dataset": dataset} | dict(fields))
    experiment = Experiment(**config["experiment"] | dict(fields))
    _check_same(config["experiment"], experiment, set(fields) - set(longer))
    spec = build(experiment, model, dataset)
    _check_resolved(directory, config["resolved"], spec, longer=bool(longer))
    if longer:
        _check_longer(history, longer, spec)
    return spec, bool(longer)


def lengthen(directory: Path, spec: RunSpec) -> None:
    """Make the run one with the limits of `spec`, that has not ended yet.

    Killed anywhere in between, it is either a run with the old limits that was interrupted, or one with the new ones.
    """
    if is_written(directory / EVENTS):
        raise ValueError(f"run: another process is writing {directory}; wait for it, or stop it")
    config, now = History(directory).config, describe(spec)
    for name in (SUMMARY, MODEL, PROFILE):
        (directory / name).unlink(missing_ok=True)
    changed = {name: now[name] for name in ("experiment", "method", "resolved")}
    write_text(directory / CONFIG, json.dumps(config | changed | {"format": FORMAT}, indent=2) + "\n")


def _check_given(directory: Path, config: Mapping[str, Any], given: Mapping[str, object]) -> None:
    """All that the run was started with as an object, and that cannot be imported, is given again."""
    lacking = [(name, f"a {name} given as an object") for name in config.get("given", ())]
    for name, written in config["experiment"].items():
        if gone := [path for path in _paths(written) if _is_gone(name, path)]:
            lacking.append((name, f"the {name} {', '.join(gone)}, which was made in a script or a notebook"))
    if lacking := [(name, what) for name, what in lacking if given.get(name) is None]:
        what = " and ".join(what for _, what in lacking)
        again = ", ".join(f"{name}=..." for name, _ in lacking)
        raise ValueError(
            f"run: {directory} was started with {what}; go on from Python: fedraa.resume({str(directory)!r}, {again})"
        )


def _paths(written: object) -> list[str]:
    """The import paths in a field as it was written down, of components that hold others, too."""
    if isinstance(written, Mapping | list):
        items = written.values() if isinstance(written, Mapping) else written
        return [path for item in items for path in _paths(item)]
    path = written.partition("(")[0].strip() if isinstance(written, str) else ""
    return [path] if is_path(path) else []


def _is_gone(name: str, path: str) -> bool:
    """Whether this names what was made in a script or a notebook that is not the one running now."""
    if not path.startswith("__main__:") and "<" not in path:
        return False
    try:
        imported(name, path)
    except ValueError:
        return True
    return False


def _check_same(was: Mapping[str, Any], experiment: Experiment, names: set[str]) -> None:
    now = experiment.model_dump(mode="json")
    for name in sorted(names):
        if now[name] != was.get(name) and isinstance(now[name], dict):  # too long for a sentence
            raise ValueError(f"{name}: the run was started with another one; give the same")
        if now[name] != was.get(name):
            raise ValueError(f"{name}: the run was started with {was.get(name)!r}, not {now[name]!r}; give the same")


def _check_resolved(directory: Path, was: Mapping[str, Any], spec: RunSpec, *, longer: bool) -> None:
    """Of what a run came to, all that its directory knows is the same now."""
    now = json.loads(json.dumps(describe(spec)["resolved"]))
    may_differ = {ASIDE_KEY, "limits"} if longer else {ASIDE_KEY}
    if wrong := [key for key in was if now.get(key) != was[key] and key not in may_differ]:
        raise ValueError(
            f"run: {directory} was of another model, dataset or fleet, its {min(wrong)} differs; "
            "give those that it was started with"
        )


def _check_further(given: object, before: Target, now: Target | None) -> None:
    """A target for the same figure that is harder to reach."""
    if now is None or now.name != before.name or now.value == before.value or not before.reached(now.value):
        raise ValueError(f"target: got {given}; the run goes to {before}, give a better {before.name}, or leave it out")


def _check_longer(history: History, longer: Mapping[str, Any], spec: RunSpec) -> None:
    """Every limit given is larger than it was, and that by which the run has ended, if it has, is among them."""
    was, now = history.config["resolved"]["limits"], vars(spec.limits)
    for name, value in longer.items():
        before = was.get(LIMITS[name])
        if before is None:
            raise ValueError(f"{name}: the run has no such limit that {value} could extend; leave it out")
        if name == "target":
            _check_further(value, Target(**before), spec.limits.target)
        elif now[LIMITS[name]] <= before:
            raise ValueError(f"{name}: got {value}; the run goes to {before:g}, give more, or leave it out")
    if (history.directory / SUMMARY).exists():
        reason = history.summary["reason"]
        if reason not in {LIMITS[name] for name in longer}:
            flags = " or ".join(f"--{name.replace('_', '-')}" for name, limit in LIMITS.items() if limit == reason)
            change = f"make it longer by {flags}" if flags else "no limit makes it longer"
            raise ValueError(f"run: {history.directory} ended by {reason}; {change}")
