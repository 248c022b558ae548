"""Checks a run's log against the rules of its method: every decision, every weight, every time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedraa.components.imports import importing_only
from fedraa.engine.loop import CALLBACK
from fedraa.errors import Inconsistent
from fedraa.replay.final_files import check_checkpoints, check_model, check_summary
from fedraa.replay.log_checker import Audit
from fedraa.replay.log_line import read
from fedraa.replay.rules import Rules
from fedraa.rundir.digests import check_seal
from fedraa.rundir.file_names import CONFIG, SUMMARY
from fedraa.rundir.history import History

__all__ = ["replay"]

# What values of a configuration that no run has come to, wherever they are used.
DAMAGED = (KeyError, TypeError, AttributeError, AssertionError, ArithmeticError, IndexError)


def replay(directory: Path) -> str:
    """What was checked, in a sentence or two.

    The rules come from config.json, the state (counts, versions, staleness, clients at work, the clock) from
    the log itself; neither the data set nor the code that ran is needed. What was measured is believed: the
    time `wall`, losses, accuracies, drift, and arrivals on the wall clock; but by the digests that the run left, in its
    checkpoints and at its end, nothing of it was changed since. Believed, too, is that a callback asked for the end,
    and, of a method whose policy draws submodels from the model itself, which one a client got and what it cost.

    Raises Inconsistent at the first line that does not follow from those before it, ValueError if the
    directory is no run.
    """
    History(directory)  # refuses what is no run directory
    with importing_only(()):
        return _replay(directory)


@contextmanager
def _described_in(directory: Path, *errors: type[Exception]) -> Iterator[None]:
    """These errors, within, are of values in a run's configuration that no run of this version has."""
    try:
        yield
    except errors as error:
        lacks = isinstance(error, KeyError) and isinstance(error.args[0], str)
        why = f"it lacks {error}" if lacks else f"{type(error).__name__} {error}".strip()
        raise ValueError(f"run: {directory / CONFIG} describes no run of this version: {why}") from None


def _replay(directory: Path) -> str:
    rules = Rules.read(directory)
    with _described_in(directory, *DAMAGED, ValueError):
        audit = Audit(rules)
        _ = rules.costs  # or a line of the log would seem to be wrong
    with _described_in(directory, *DAMAGED):  # a ValueError is of the log
        for line in read(directory):
            audit.check(line)
    evaluations, end = audit.evaluations, audit.end
    evaluations.compare(directory, ended=end is not None)
    counts = ", ".join(f"{count} {kind}" for kind, count in audit.lines.items() if count)
    if end is None:
        if (directory / SUMMARY).exists():
            raise Inconsistent(SUMMARY, "is there, though the log has no end")
        check_checkpoints(directory)
        return f"{directory}: consistent so far, but the run has not ended ({counts})."
    digest = str(end["model_sha256"])
    check_summary(directory, evaluations.reached)
    base = rules.resolved.base
    if base is None:
        check_model(directory, rules.resolved.tensors, digest)
    else:
        check_model(directory, rules.resolved.tensors, digest, base.sha256, base.changed)
    check_checkpoints(directory)
    check_seal(directory)
    checked = "choice, version, staleness, mix, cost and time" if rules.known else "client, version, mix and time"
    by = f" of {end['by']} (believed, not checked)" if end["reason"] == CALLBACK else ""
    believed = "".join(f" What {part} decides is believed, not checked." for part in dict.fromkeys(rules.believed))
    return (
        f"{directory}: consistent ({counts}). Every {checked} follows from config.json; evals.csv, summary.json "
        f"and model.pt agree with the log, which ended by {end['reason']}{by} at step {end['step']}.{believed}"
    )
