"""The record of the study `race` in one setting: all runs with their evaluations."""

import gzip
import json
import operator
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.studies.race.entrants import KNOWN
from benchmarks.studies.race.measures import SPENT, Measured, cost_to_accuracy
from benchmarks.studies.race.runs import PARTS
from fedraa.errors import InputError
from fedraa.reading.regular_files import read_regular_file
from fedraa.rundir.atomic_files import replace_file

SUFFIX = ".runs.jsonl.gz"
RESTORE = "restore the file, or leave out --extend"


def write_record(path: Path, runs: Iterable[Measured]) -> None:
    """Write a compressed file with a line of JSON per run. The bytes depend only on the runs."""
    lines = "".join(json.dumps(_encode_run(run)) + "\n" for run in runs)
    with replace_file(path) as file:
        file.write(gzip.compress(lines.encode(), mtime=0))


def read_record(path: Path, targets: tuple[float, ...]) -> list[Measured]:
    """Read the runs from a record.

    Raises InputError if the file is not a record. The field of the error names the file, and the line if there is one.
    """
    try:
        packed = read_regular_file(path)
        # gzip reads an empty file without an error.
        if not packed:
            raise EOFError("it is empty")
        lines = gzip.decompress(packed).decode().splitlines()
    except (OSError, EOFError, zlib.error, ValueError) as error:
        problem = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(str(path), problem, hint=RESTORE) from None
    runs: dict[tuple[str, str, int], Measured] = {}
    for number, line in enumerate(lines, 1):
        try:
            run = _decode_run(json.loads(line), targets)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise InputError(f"{path} line {number}", "it is not a run of a race", hint=RESTORE) from None
        key = (run.entrant, run.part, run.seed)
        if key in runs:
            raise InputError(f"{path} line {number}", "the record has this run twice", got=key, hint=RESTORE)
        runs[key] = run
    return list(runs.values())


def _encode_run(run: Measured) -> dict[str, Any]:
    identity = {"entrant": run.entrant, "part": run.part, "seed": run.seed, "commit": run.commit}
    spent = {name: [float(f"{value:.10g}") for value in run.spent[name]] for name in SPENT}
    return identity | {"experiment": run.fields, "method": run.method, "client_worst": run.worst, "evaluations": spent}


def _decode_run(line: Mapping[str, Any], targets: tuple[float, ...]) -> Measured:
    run = Measured(
        entrant=str(line["entrant"]),
        part=str(line["part"]),
        seed=operator.index(line["seed"]),
        commit=str(line["commit"]),
        fields=dict(line["experiment"]),
        method=dict(line["method"]),
        worst=float(line["client_worst"]),
        spent=pd.DataFrame(line["evaluations"])[list(SPENT)].astype(float),
        targets=targets,
    )
    known = run.entrant in KNOWN and run.part in PARTS and run.commit.isprintable()
    complete = run.fields and run.method and not run.spent.empty and run.worst >= 0
    if not known or not complete or not _is_plausible(run.spent, targets):
        raise InputError("run", "this is not a run of a race", got=(run.entrant, run.part, run.seed, run.commit))
    return run


def _is_plausible(spent: pd.DataFrame, targets: tuple[float, ...]) -> bool:
    """Return True if no accuracy exceeds 1 and no cost decreases over time."""
    numbers = np.isfinite(spent).all(axis=None) and (spent >= 0).all(axis=None) and spent["accuracy"].max() <= 1
    rises = (spent.drop(columns="accuracy").diff().iloc[1:] >= 0).all(axis=None)
    return bool(numbers and rises and cost_to_accuracy(spent, "t", targets[-1]) > 0)
