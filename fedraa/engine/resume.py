"""Resume a run: check that its experiment and objects are the same, and that new limits are larger."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from torch import nn

from fedraa.components.imports import import_object, importing_only
from fedraa.components.text import is_script_path, paths_in
from fedraa.composition.differences import differing_part
from fedraa.config.experiment import CHANGEABLE, Experiment
from fedraa.config.file import check_names
from fedraa.config.sections import ClusterOptions, StopOptions
from fedraa.data import Dataset, FederatedDataset
from fedraa.engine.build import build_run, report_nothing
from fedraa.engine.resume_guard import first_difference, pinned_settings
from fedraa.engine.run_description import PENDING_EVALS_KEY, WEIGHTS_KEY, describe_run
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import InputError, RunWarning, short_text
from fedraa.objectives import Target
from fedraa.rundir.atomic_files import json_text, raise_unwritable, write_text
from fedraa.rundir.checkpoint import ASKED, choose_checkpoint, newest_first, read_head
from fedraa.rundir.config_file import read_config
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, MODEL, SEAL, SUMMARY
from fedraa.rundir.growing_file import describe_damage
from fedraa.rundir.history import History
from fedraa.rundir.partition_file import refuse_partition_directory
from fedraa.rundir.profile import PROFILE
from fedraa.rundir.run_lock import lock_log


def load_for_resume(
    directory: Path,
    model: nn.Module | None,
    dataset: Dataset | FederatedDataset | None,
    fields: Mapping[str, Any],
    *,
    trust: bool,
    doing: Callable[[str], None] = report_nothing,
) -> tuple[RunSpec, bool]:
    """Return the run of a directory, ready to continue, and True if a limit in `fields` extends it.

    Args:
        directory: The run directory.
        model: The model, if the run was started with an object.
        dataset: The dataset, if the run was started with an object.
        fields: New limits, fields in `CHANGEABLE`, and the components that were passed as objects at the start.
        trust: True to allow the import of user code that config.json names.
        doing: Called with a text about each long step.

    Raises:
        InputError: The run has ended and is not extended, an object is missing or differs, or the log or the
            configuration was changed or has another format.
    """
    history = History(directory)
    # An error about a damaged configuration comes first, because such a run cannot be extended.
    read_config(directory / CONFIG)
    check_names(fields, Experiment.model_fields)
    longer = {name: value for name, value in fields.items() if name in StopOptions.model_fields}
    if not longer and (directory / SUMMARY).exists():
        hint = "extend it with a larger --updates, --rounds, --time, --target-accuracy or --target"
        raise InputError("run", "it has ended", got=directory, hint=hint)
    refuse_partition_directory(directory)
    spec = rebuild_run(directory, model, dataset, fields, trust=trust, doing=doing)
    if longer:
        _check_longer(history, longer, spec)
        _warn_of_first_limit(history, longer, spec)
    check_log(directory)
    return spec, bool(longer)


def check_same_run(directory: Path, spec: RunSpec) -> None:
    """Raise InputError if a directory has a run with other settings, or with another model or dataset."""
    config = History(directory).config
    hint = "give the same arguments to continue, or choose another directory"
    difference = first_difference(config["experiment"], spec.experiment.model_dump(mode="json"))
    if difference is not None:
        raise InputError("out", f"{directory} has a run with other settings: this one {difference}", hint=hint)
    if config["resolved"]["limits"] != spec.limits.described():
        raise InputError("out", f"{directory} has a run with other limits, such as its time or steps", hint=hint)
    _check_resolved(directory, config["resolved"], spec, {PENDING_EVALS_KEY})
    _check_method(directory, config["method"], spec, set())


def rebuild_run(
    directory: Path,
    model: nn.Module | None,
    dataset: Dataset | FederatedDataset | None,
    fields: Mapping[str, Any],
    *,
    trust: bool,
    doing: Callable[[str], None] = report_nothing,
) -> RunSpec:
    """Return the run that a directory describes, with the objects and the limits in `fields`.

    `load_for_resume` documents the arguments. Raises InputError if an object is missing or differs, or the
    configuration was changed or has another format.
    """
    config = History(directory).config
    longer = {name for name in fields if name in StopOptions.model_fields}
    passed = {"model": model, "dataset": dataset} | dict(fields)
    _check_passed(directory, config, passed)
    with nullcontext() if trust else _importing_only_passed(directory, config["experiment"], passed):
        experiment = Experiment(**config["experiment"] | _unset_options_of_ray(fields) | dict(fields))
        fixed = set(fields) - CHANGEABLE - longer
        _check_same(config["experiment"], experiment.model_dump(mode="json"), fixed)
        spec = build_run(experiment, model, dataset, doing)
    # The weights of the model come from the checkpoint, so the passed model may have others.
    may_differ = {PENDING_EVALS_KEY, WEIGHTS_KEY}
    if longer:
        may_differ.add("limits")
    _check_resolved(directory, config["resolved"], spec, may_differ)
    _check_method(directory, config["method"], spec, longer)
    return spec


def _unset_options_of_ray(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the options that have no effect if the run continues with the engine local."""
    if fields.get("engine") != "local":
        return {}
    return {
        name: ClusterOptions.model_fields[name].default for name in ClusterOptions.MAY_CHANGE - {"engine", "workers"}
    }


def resume_command(spec: RunSpec, directory: Path) -> str:
    """Return the command that resumes an interrupted run.

    A run that was started with objects is resumed from Python. The result is then the Python call.
    """
    written = spec.experiment.model_dump(mode="json")
    from_scripts = [name for name, value in written.items() if any(map(is_script_path, paths_in(value)))]
    names = list(dict.fromkeys([*spec.object_fields, *from_scripts]))
    if names:
        return _resume_call(directory, names, written)
    command = f"fedraa resume {quote(str(directory))}"
    if foreign_in(written):
        command += " --trust"
    return command


def suggest_continuation(spec: RunSpec, directory: Path) -> str:
    """Return the next step for the user after a run ended early, with the command that continues the run."""
    if not (directory / CONFIG).exists():
        return "start the run again"
    command = resume_command(spec, directory)
    if newest_first(directory / CHECKPOINTS):
        return f"resume with: {command}"
    return f"the run has no checkpoint yet; start it from the beginning with: {command}"


def extend_limits(directory: Path, spec: RunSpec) -> None:
    """Write new limits into the run's configuration, and remove the files that a run writes at its end.

    If the process is killed meanwhile, the run counts as interrupted, with the old or the new limits. Call this only
    when the run can start, because a finished run loses its model and its summary. A second call does nothing.
    """
    with raise_unwritable(directory), lock_log(directory):
        config = History(directory).config
        now = describe_run(spec)
        if config["resolved"]["limits"] == spec.limits.described():
            return
        for name in (SUMMARY, MODEL, PROFILE, SEAL):
            (directory / name).unlink(missing_ok=True)
        changed: dict[str, Any] = {name: now[name] for name in ("experiment", "method", "resolved")}
        changed["resolved"] |= {PENDING_EVALS_KEY: config["resolved"][PENDING_EVALS_KEY]}
        write_text(directory / CONFIG, json_text(config | changed))


def _check_passed(directory: Path, config: Mapping[str, Any], passed: Mapping[str, object]) -> None:
    """Raise InputError if an object of the run cannot be imported and the user did not pass it again.

    Args:
        directory: The run directory, for errors.
        config: The content of the run's config.json.
        passed: The objects and fields that are passed again.
    """
    needed = {name: f"a {name} given as an object" for name in config.get("given", ())}
    for name, written in config["experiment"].items():
        if name in needed:
            continue
        gone = [path for path in paths_in(written) if _is_missing_script_object(name, path)]
        if gone:
            needed[name] = f"the {name} {', '.join(gone)} of a script or a notebook"
    missing = [name for name in needed if passed.get(name) is None]
    if missing:
        objects = " and ".join(needed[name] for name in missing)
        unpassed = {name: value for name, value in config["experiment"].items() if passed.get(name) is None}
        call = _resume_call(directory, missing, unpassed)
        raise InputError("run", f"it was started with {objects}", got=directory, hint=f"resume it from Python: {call}")


def _resume_call(directory: Path, names: Sequence[str], written: Mapping[str, Any]) -> str:
    """Return the Python call that resumes a run and passes the named objects again.

    If other fields in `written`, a part of config.json, name user code, the call has `trust=True`.
    """
    arguments = [repr(str(directory)), *(f"{name}=..." for name in names)]
    if foreign_in({name: value for name, value in written.items() if name not in names}):
        arguments.append("trust=True")
    return f"fedraa.resume({', '.join(arguments)})"


def _is_missing_script_object(name: str, path: str) -> bool:
    """Return True if `path` names an object that a script or notebook defined and that cannot be imported now."""
    # A path with `<`, such as that of a lambda, cannot be imported.
    if "<" in path:
        return True
    if not is_script_path(path):
        return False
    try:
        import_object(name, path)
    except ValueError:
        return True
    return False


def _importing_only_passed(
    directory: Path, written: Mapping[str, Any], passed: Mapping[str, Any]
) -> AbstractContextManager[None]:
    """Return a context in which only code that the user passed again can be imported.

    Args:
        directory: The run directory, for errors.
        written: The fields of the experiment in the run's config.json.
        passed: The objects and fields that are passed again.

    Raises:
        InputError: The run needs other user code.
    """
    refuse_foreign(directory, {name: value for name, value in written.items() if passed.get(name) is None})
    return importing_only(paths_in(list(passed.values())))


def refuse_foreign(directory: Path, written: Mapping[str, Any]) -> None:
    """Raise InputError if these fields of config.json name code to import. An attacker may have written the file."""
    paths = foreign_in(written)
    if paths:
        problem = f"its config.json names code to import: {', '.join(paths)}"
        raise InputError("run", problem, got=directory, hint="give --trust, in Python trust=True, if you trust it")


def foreign_in(written: Mapping[str, Any]) -> list[str]:
    """Return the import paths in these fields of config.json."""
    may_change = Experiment.may_change()
    return sorted(set(paths_in([value for name, value in written.items() if name not in may_change])))


def check_log(directory: Path) -> None:
    """Check the log and the configuration against the last intact checkpoint. Warn about damaged checkpoints.

    Raises InputError if one of the `pinned_settings` changed after the checkpoint, or no checkpoint can be used.
    """
    pinned = pinned_settings(History(directory).config)
    choice = choose_checkpoint(directory / CHECKPOINTS, partial(describe_damage, directory), read_head)
    if choice is None:
        problem = f"run: {directory} has no checkpoint, so the run starts again from the beginning"
        warnings.warn(problem, RunWarning, stacklevel=2)
        return
    changed_field = first_difference(choice.state[ASKED], pinned)
    if changed_field is not None:
        problem = f"it {changed_field} when {choice.path.name} was written"
        raise InputError(str(directory / CONFIG), problem, hint="restore the earlier value")
    if choice.skipped:
        listed = "; ".join(f"{name}: {why}" for name, why in choice.skipped.items())
        problem = f"run: {directory} resumes from the earlier {choice.path.name}; {listed}"
        warnings.warn(problem, RunWarning, stacklevel=2)


def _check_same(was: Mapping[str, Any], now: Mapping[str, Any], names: set[str]) -> None:
    """Raise InputError for the first field in `names` that differs between two experiments."""
    for name in sorted(names):
        before = was.get(name)
        if now[name] == before:
            continue
        if isinstance(now[name], dict):
            # The value is too long for a sentence.
            raise InputError(name, "the run was started with another value", hint="give the same value")
        if before is None:
            raise InputError(name, "the run was started without it", got=now[name], hint="leave it out")
        problem = f"the run was started with {short_text(before)}"
        raise InputError(name, problem, got=now[name], hint="give the same value")


def _check_resolved(directory: Path, was: Mapping[str, Any], spec: RunSpec, may_differ: Set[str]) -> None:
    """Raise InputError if a resolved value in config.json differs from the value in `spec`.

    Args:
        directory: The run directory, for errors.
        was: The resolved values in the run's config.json.
        spec: The run as it would continue.
        may_differ: The names of values that are not compared.
    """
    now = json.loads(json.dumps(describe_run(spec)["resolved"]))
    differing = [key for key in was if now.get(key) != was[key] and key not in may_differ]
    if differing:
        problem = f"it had another model, dataset or fleet: {min(differing)} differs"
        raise InputError("run", problem, got=directory, hint="give the same model, dataset and fleet as at the start")


def _check_harder_target(value: object, before: Target, now: Target | None) -> None:
    if now is None or now.name != before.name or now.value == before.value or not before.reached(now.value):
        expected = f"a target for {before.name} that is harder to reach than {before}"
        raise InputError("target", got=value, expected=expected, hint="give such a target, or leave it out")


def _check_method(directory: Path, was: Mapping[str, Any], spec: RunSpec, longer: set[str]) -> None:
    """Raise InputError if config.json does not describe the method of the experiment. New limits are ignored."""
    now = spec.method.described()
    if longer and isinstance(was.get("schedule"), Mapping):
        kept = {name: value for name, value in was["schedule"].items() if name not in longer}
        was = {**was, "schedule": {**now["schedule"], **kept}}
    where = differing_part(was, spec.method)
    if where is not None:
        raise InputError(
            str(directory / CONFIG),
            f"it does not describe the method of its experiment: {where} differs",
            hint="restore the file, or start the run again if another version of fedraa started it",
        )


def _warn_of_first_limit(history: History, longer: Mapping[str, Any], spec: RunSpec) -> None:
    """Warn if the extended run differs from a run that has the new limit of rounds from the start."""
    auxiliary = spec.method.auxiliary
    if "rounds" not in longer or auxiliary is None or not auxiliary.uses_rounds:
        return
    before = history.config["resolved"]["limits"]["steps"]
    problem = (
        f"rounds: {spec.experiment.method} keeps the values that it computed for {before} rounds; for those of "
        f"{longer['rounds']} rounds, start a new run"
    )
    warnings.warn(problem, RunWarning, stacklevel=2)


def _check_longer(history: History, longer: Mapping[str, Any], spec: RunSpec) -> None:
    """Raise InputError unless all new limits are larger, and one of them is the limit that ended the run."""
    was = history.config["resolved"]["limits"]
    now = vars(spec.limits)
    for name, value in longer.items():
        before = was.get(StopOptions.LIMITS[name])
        if before is None:
            raise InputError(name, "the run has no such limit", got=value, hint="leave it out")
        if name == "target":
            _check_harder_target(value, Target(**before), spec.limits.target)
        elif value is None or now[StopOptions.LIMITS[name]] <= before:
            expected = f"more than {before:g}, the limit of the run"
            raise InputError(
                name,
                got=value,
                expected=expected,
                hint="give a larger value, or leave it out to continue an interrupted run",
            )
    if (history.directory / SUMMARY).exists():
        reason = history.summary["reason"]
        if reason not in {StopOptions.LIMITS[name] for name in longer}:
            names = [name for name, limit in StopOptions.LIMITS.items() if limit == reason]
            hint = ""
            if names:
                hint = "extend it with " + " or ".join(f"--{name.replace('_', '-')}" for name in names)
            raise InputError("run", f"it ended by {reason}", got=history.directory, hint=hint)
