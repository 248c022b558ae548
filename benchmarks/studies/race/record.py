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


def write_record(path: Path, runs: Iterable[Measured]) -> None:
    """Write a compressed file with a line of JSON per run. The bytes depend only on the runs."""
    lines = "".join(json.dumps(_encode_run(run)) + "\n" for run in runs)
    with replace_file(path) as file:
        file.write(gzip.compress(lines.encode(), mtime=0))


def read_record(path: Path, targets: tuple[float, ...]) -> list[Measured]:
    """Read the runs from a record. Raise InputError if the file is not a record."""
    try:
        packed = read_regular_file(path)
    except OSError as error:
        raise InputError("extend", f"{path} cannot be read: {error.strerror or error}") from None
    try:
        # gzip reads an empty file without an error.
        if not packed:
            raise EOFError
        runs = [_decode_run(json.loads(line), targets) for line in gzip.decompress(packed).decode().splitlines()]
        if len({(run.entrant, run.part, run.seed) for run in runs}) < len(runs):
            raise InputError("runs", "the record has a run twice")
        return runs
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise InputError("extend", f"{path} is not a record of a race, or is damaged") from None


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
