"""What a run goes on as: its own experiment, what has to be given again, and limits that may be larger than before."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from shlex import quote
from typing import Any

from torch import nn

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.client.compression import COMPRESSOR
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER
from fedraa.components.imports import imported, importing_only
from fedraa.components.registry import Seam
from fedraa.components.text import describe as describe_part
from fedraa.components.text import is_foreign, paths_in, says
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.config.file import check_names
from fedraa.data import Dataset, FederatedDataset
from fedraa.engine.build import build, silently
from fedraa.engine.resume_guard import ELSEWHERE, LIMITS, asked, changed
from fedraa.engine.run_description import ASIDE_KEY, describe, recorded_aside
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import short_text
from fedraa.ledger.participation import PARTICIPATION
from fedraa.objectives import Target
from fedraa.rundir.atomic_files import write_text
from fedraa.rundir.checkpoint import ASKED, choose, head
from fedraa.rundir.config_file import FORMAT
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, EVENTS, MODEL, SEAL, SUMMARY
from fedraa.rundir.growing_file import damage
from fedraa.rundir.history import History
from fedraa.rundir.profile import PROFILE
from fedraa.rundir.run_lock import is_written
from fedraa.server.optimizers import SERVER_OPTIMIZER
from fedraa.server.schedule import SCHEDULER
from fedraa.server.staleness import STALENESS

# What makes the parts of a method that are text in some descriptions, and objects in others.
_SEAMS: dict[str, Seam[Any]] = {
    "participation": PARTICIPATION,
    "scheduler": SCHEDULER,
    "staleness": STALENESS,
    "aggregator": AGGREGATOR,
    "optimizer": SERVER_OPTIMIZER,
    "compress": COMPRESSOR,
    "local_optimizer": LOCAL_OPTIMIZER,
    "download": COMPRESSOR,
}

logger = logging.getLogger(__name__)


def resumed(
    directory: Path,
    model: nn.Module | None,
    dataset: Dataset | FederatedDataset | None,
    fields: Mapping[str, Any],
    *,
    trust: bool,
    doing: Callable[[str], None] = silently,
) -> tuple[RunSpec, bool]:
    """The run in this directory as it goes on, and whether it is made longer by the limits among `fields`.

    All other `fields` are components given again, the same as before. Other code that config.json names is imported
    with `trust` alone. Raises ValueError, one sentence, for a run that has ended and is not made longer, that lacks
    something, or that was of something else, and for a log or a configuration that was changed since.
    """
    history = History(directory)
    config = history.config
    check_names(fields, Experiment.model_fields)
    longer = {name: value for name, value in fields.items() if name in LIMITS}
    if not longer and (directory / SUMMARY).exists():
        raise ValueError(
            f"run: {directory} has ended; there is nothing to go on with; make it longer by a larger --updates, "
            "--rounds, --time, --target-accuracy or --target"
        )
    given = {"model": model, "dataset": dataset} | dict(fields)
    _check_given(directory, config, given)
    with nullcontext() if trust else _only_what_is_given(directory, config["experiment"], given):
        experiment = Experiment(**config["experiment"] | dict(fields))
        _check_same(config["experiment"], experiment, set(fields) - set(longer))
        spec = build(experiment, model, dataset, doing)
    _check_resolved(directory, config["resolved"], spec, longer=bool(longer))
    _check_method(directory, config["method"], spec, set(longer))
    if longer:
        _check_longer(history, longer, spec)
    _check_log(directory, asked(config))
    return spec, bool(longer)


def how_to_go_on(spec: RunSpec, directory: Path) -> str:
    """What goes on with a run that was interrupted: a command, or a call from Python where objects are given again."""
    written = spec.experiment.model_dump(mode="json")
    again = [name for name, value in written.items() if any(map(_is_of_a_script, paths_in(value)))]
    if again := list(dict.fromkeys([*spec.given, *again])):
        return _call(directory, again)
    return f"fedraa resume {quote(str(directory))}{' --trust' if foreign_in(written) else ''}"


def lengthen(directory: Path, spec: RunSpec) -> None:
    """Make the run one with the limits of `spec`, that has not ended yet.

    Killed anywhere in between, it is either a run with the old limits that was interrupted, or one with the new ones.
    """
    if is_written(directory / EVENTS):
        raise ValueError(f"run: another process is writing {directory}; wait for it, or stop it")
    config, now = History(directory).config, describe(spec)
    for name in (SUMMARY, MODEL, PROFILE, SEAL):
        (directory / name).unlink(missing_ok=True)
    changed: dict[str, Any] = {name: now[name] for name in ("experiment", "method", "resolved")}
    changed["resolved"] |= {ASIDE_KEY: recorded_aside(config, changed["resolved"][ASIDE_KEY])}
    write_text(directory / CONFIG, json.dumps(config | changed | {"format": FORMAT}, indent=2) + "\n")


def _check_given(directory: Path, config: Mapping[str, Any], given: Mapping[str, object]) -> None:
    """All that the run was started with as an object, and that cannot be imported, is given again."""
    lacking = [(name, f"a {name} given as an object") for name in config.get("given", ())]
    for name, written in config["experiment"].items():
        if name in config.get("given", ()):
            continue
        if gone := [path for path in paths_in(written) if _is_gone(name, path)]:
            lacking.append((name, f"the {name} {', '.join(gone)} of a script or a notebook"))
    if lacking := [(name, what) for name, what in lacking if given.get(name) is None]:
        what = " and ".join(what for _, what in lacking)
        again = _call(directory, [name for name, _ in lacking])
        raise ValueError(f"run: {directory} was started with {what}; go on from Python: {again}")


def _call(directory: Path, again: Sequence[str]) -> str:
    return f"fedraa.resume({', '.join([repr(str(directory)), *(f'{name}=...' for name in again)])})"


def _is_of_a_script(path: str) -> bool:
    """Whether this names what a script or a notebook has made, which no command can import."""
    return "<" in path or path.startswith("__main__:")


def _is_gone(name: str, path: str) -> bool:
    """Whether this names what was made in a script or a notebook that is not the one running now."""
    if "<" in path or not _is_of_a_script(path):
        return "<" in path
    try:
        imported(name, path)
    except ValueError:
        return True
    return False


def _only_what_is_given(
    directory: Path, written: Mapping[str, Any], given: Mapping[str, Any]
) -> AbstractContextManager[None]:
    """No code is imported but what was given again; ValueError, one sentence, if the run needs other."""
    refuse_foreign(directory, {name: value for name, value in written.items() if given.get(name) is None})
    return importing_only([path for value in given.values() for path in paths_in(value)])


def refuse_foreign(directory: Path, written: Mapping[str, Any]) -> None:
    """ValueError if any of these fields, as they were written down, names code to import: it may be anyone's."""
    if paths := foreign_in(written):
        raise ValueError(
            f"run: {directory} names code that would be imported and run, {', '.join(paths)}; if you trust it, "
            "give --trust, in Python trust=True"
        )


def foreign_in(written: Mapping[str, Any]) -> list[str]:
    """The code to import that fields name, as they were written down."""
    return sorted({path for name, value in written.items() if name not in ELSEWHERE for path in paths_in(value)})


def _check_log(directory: Path, experiment: Mapping[str, Any]) -> None:
    """Before anything is trained: what is there is what the checkpoint knew; tells what has to be passed over."""
    choice = choose(directory / CHECKPOINTS, lambda state: damage(directory, state["log"]), head)
    if choice is None:
        return
    if wrong := changed(choice.state.get(ASKED), experiment):
        raise ValueError(f"run: {directory / CONFIG} {wrong}, when {choice.path.name} was written; put that back")
    if choice.passed_over:
        listed = "; ".join(f"{name} {why}" for name, why in choice.passed_over.items())
        logger.warning("%s goes on from %s: %s", directory, choice.path.name, listed)


def _check_same(was: Mapping[str, Any], experiment: Experiment, names: set[str]) -> None:
    now = experiment.model_dump(mode="json")
    for name in sorted(names):
        if now[name] != was.get(name) and isinstance(now[name], dict):  # too long for a sentence
            raise ValueError(f"{name}: the run was started with another one; give the same")
        if now[name] != was.get(name):
            before, after = short_text(was.get(name)), short_text(now[name])
            raise ValueError(f"{name}: the run was started with {before}, not {after}; give the same")


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


def _check_method(directory: Path, was: Mapping[str, Any], spec: RunSpec, longer: set[str]) -> None:
    """The method that config.json describes is the one that the experiment comes to, but for limits that are new."""
    if longer and isinstance(schedule := was.get("schedule"), Mapping):
        was = {**was, "schedule": {name: value for name, value in schedule.items() if name not in longer}}
    if (where := differs(was, spec.method)) is not None:
        raise ValueError(
            f"run: {directory / CONFIG} does not describe the method of its experiment: {where} differs; put it back, "
            "or start the run anew if an older fedraa began it"
        )


def differs(was: Mapping[str, Any], method: Method) -> str | None:
    """The part in which a method is not what config.json describes, as far as that goes; None where it is."""
    return _parts(was, json.loads(json.dumps(method.described())))


def _parts(was: Any, now: Any, where: str = "") -> str | None:
    """Where two descriptions part, as far as the older one goes; one may be the text of what the other describes."""
    for text, described in ((was, now), (now, was)):
        if isinstance(text, str) and isinstance(described, Mapping):
            return None if _is_of(text, described, where) else where
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return None if was == now else where
    found = (_parts(value, now.get(key), f"{where}.{key}".lstrip(".")) for key, value in was.items())
    return next(filter(None, found), None)


def _is_of(text: str, described: Mapping[str, Any], where: str) -> bool:
    """Whether the text of a component makes what was described; of an own one, whether it says no other values."""
    seam = _SEAMS.get(where.rpartition(".")[2])
    if seam is None or is_foreign(text):
        return says(text, described)
    return bool(json.loads(json.dumps(describe_part(seam.make(text)))) == described)


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
