"""Check a run's log against the rules of its method: every decision, every weight, every time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedraa.components.imports import importing_only
from fedraa.engine.loop_state import CALLBACK
from fedraa.errors import Inconsistent, InputError, locate_error
from fedraa.replay.final_files import check_checkpoints, check_model, check_summary
from fedraa.replay.log_checker import Audit
from fedraa.replay.log_line import read_lines
from fedraa.replay.rules import Rules
from fedraa.rundir.digests import check_seal
from fedraa.rundir.file_names import CONFIG, SUMMARY
from fedraa.rundir.history import History

__all__ = ["replay"]

# Impossible values in a damaged configuration may raise these exceptions.
DAMAGED = (KeyError, TypeError, AttributeError, AssertionError, ArithmeticError, IndexError)


def replay(directory: Path) -> str:
    """Check the log of a run, and return a summary in one or two sentences.

    The rules come from config.json, and the state from the log. Neither the data set nor custom code is needed.
    Measured values are not computed again: `wall`, losses, accuracies, drift, and arrivals on the wall clock. Digests
    show that these values have not changed. Two things are not checked: a callback's request to end the run, and
    submodels that depend on the model's values.

    Raises:
        Inconsistent: A line contradicts the rules and the earlier lines. The error names the first such line.
        InputError: The directory is not a run.
    """
    # The constructor raises an error for a directory that is not a run.
    History(directory)
    with importing_only(()):
        return _check_run(directory)


@contextmanager
def _blame_config(directory: Path, *errors: type[Exception]) -> Iterator[None]:
    """Convert exceptions of the types `errors` in the block to an InputError about config.json."""
    place = f"run: {directory / CONFIG}"
    try:
        yield
    except KeyError as error:
        raise InputError(f"{place}: {error.args[0]}", "it is missing") from None
    except errors as error:
        if isinstance(error, ValueError):
            raise locate_error(error, place) from None
        problem = f"this version of fedraa never writes such values: {type(error).__name__} {error}"
        raise InputError(place, problem.strip()) from None


def _check_run(directory: Path) -> str:
    rules = Rules.read(directory)
    with _blame_config(directory, *DAMAGED, ValueError):
        audit = Audit(rules)
        # The property computes the costs. An error in them must name config.json. In the next block, it would be taken
        # for an error of the log.
        _ = rules.costs
    # A ValueError in this block is about the log, so it is not converted.
    with _blame_config(directory, *DAMAGED):
        for line in read_lines(directory):
            audit.check(line)
    evaluations = audit.evaluations
    end = audit.end
    evaluations.compare(directory, ended=end is not None)
    counts = ", ".join(f"{count} {kind}" for kind, count in audit.lines.items() if count)
    if end is None:
        if (directory / SUMMARY).exists():
            raise Inconsistent(SUMMARY, "the file exists, although the log has no end")
        check_checkpoints(directory)
        return f"{directory}: consistent so far, but the run has not ended ({counts})."
    digest = str(end["model_sha256"])
    check_summary(directory, evaluations.reached)
    check_model(directory, rules.resolved.tensors, digest, rules.resolved.base)
    check_checkpoints(directory)
    check_seal(directory)
    checked = "version and time"
    if rules.costs_known:
        checked = "choice, version, staleness, weight, cost and time"
    elif rules.choices_known:
        checked = "client, version, weight and time"
    reason = str(end["reason"])
    if reason == CALLBACK:
        reason += f" of {end['by']} (not checked)"
    unchecked = "".join(f" The decisions of {part} are not checked." for part in dict.fromkeys(rules.custom_components))
    return (
        f"{directory}: consistent ({counts}). Every {checked} follows from config.json; evals.csv, summary.json "
        f"and model.pt agree with the log, which ended by {reason} at step {end['step']}.{unchecked}"
    )
