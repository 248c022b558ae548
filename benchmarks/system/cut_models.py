"""Which models of torchvision, timm and transformers can be cut, and whether their cuts are right.

    python -m benchmarks cut_models                                      # those of the list that the table lacks
    python -m benchmarks cut_models --only timm:xcit_tiny_12_p16_224     # these, listed or not

Each line of `benchmarks/results/cut_models.csv` is written as soon as it is known, so that what was stopped goes on.
A model is `cut` (and random cuts of it are right, see `cut_check`), `refused` in one sentence, cut and `wrong`, or it
ends in a `traceback`. timm and transformers are in the extra `zoo`.
"""

from __future__ import annotations

import csv
import gc
import time
import warnings
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console

from benchmarks.system.cut_check import check, random_cut, share
from benchmarks.system.cut_zoo import LIBRARIES, build, listed
from fedraa.data.tree import Tree
from fedraa.submodels import IndexSet, Traced, measure, trace

RESULTS = Path(__file__).parents[1] / "results" / "cut_models.csv"
MIDDLE, LARGE = 15_000_000, 100_000_000  # parameters: from which on one cut is enough, and is compared with another
COLUMNS = (
    "model",
    "verdict",
    "parameters",
    "groups",
    "share_in_groups",
    "half_parameters",
    "half_flops",
    "half_memory",
    "trace_seconds",
    "reason",
)

Row = dict[str, object]


def row(name: str) -> Row:
    """One line of the table."""
    module, example = build(name)
    start = time.process_time()
    try:
        traced = trace(module, example)
    except ValueError as error:
        return _line(name, "refused", str(error))
    except Exception as error:  # none of them should come, whatever it is
        return _line(name, "traceback", f"{type(error).__name__}: {error}")
    seconds = time.process_time() - start
    del module
    if not traced.groups:
        return _line(name, "refused", f"nothing of it can be cut: {traced.reasons()}")
    try:
        _check_all(traced, example)
        halves = _half(traced, example)
    except AssertionError as error:
        return _line(name, "wrong", str(error))
    except Exception as error:  # likewise
        return _line(name, "traceback", f"{type(error).__name__}: {error}")
    sizes: Row = {"parameters": traced.size, "groups": len(traced.groups), "share_in_groups": round(share(traced), 4)}
    return _line(name, "cut", traced.reasons()) | sizes | halves | {"trace_seconds": round(seconds, 2)}


def _line(name: str, verdict: str, reason: str) -> Row:
    return {"model": name, "verdict": verdict, "reason": " ".join(reason.split())}


def _check_all(traced: Traced, example: Tree) -> None:
    rng = np.random.default_rng(0)
    if traced.size < LARGE:
        for seed in range(2 if traced.size < MIDDLE else 1):
            check(traced, example, random_cut(traced, rng), seed)
        return
    outer = _half_of(_half_of(traced.full(), rng), rng)  # in float64, with gradients, the whole may be too much
    check(traced, example, _half_of(outer, rng), 0, outer)


def _half_of(indices: IndexSet, rng: np.random.Generator) -> IndexSet:
    return tuple(np.sort(rng.permutation(kept)[: -(-len(kept) // 2)]) for kept in indices)


def _half(traced: Traced, example: Tree) -> Row:
    """What half of its units cost, in relation to all."""
    half = tuple(max(1, group.size // 2) for group in traced.groups)
    full, cut = (measure(traced, widths, example) for widths in (traced.widths(traced.full()), half))
    assert cut.params < full.params, "half of its units has as many parameters as all"
    assert cut.flops < full.flops, "half of its units computes as much as all"
    return {
        "half_parameters": round(cut.params / full.params, 4),
        "half_flops": round(cut.flops / full.flops, 4),
        "half_memory": round(cut.memory / full.memory, 4),
    }


def main(only: tuple[str, ...] = (), libraries: tuple[str, ...] = tuple(LIBRARIES), out: Path = RESULTS) -> None:
    """Add to the table.

    Args:
        only: models, as `library:name`, instead of those listed; they are tried again if the table has them.
        libraries: whose models.
        out: the table.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = _read(out)
    todo = only or [name for library in libraries for x in listed(library) if (name := f"{library}:{x}") not in rows]
    for name in todo:
        rows[name] = row(name)
        Console().print(name, rows[name]["verdict"], rows[name].get("share_in_groups", rows[name]["reason"]))
        _write(out, rows)
        gc.collect()
    for line in summary(rows):
        Console().print(line)


def summary(rows: dict[str, Row]) -> list[str]:
    """A line for each library."""
    lines = []
    for library in LIBRARIES:
        mine = [line for name, line in rows.items() if name.startswith(f"{library}:")]
        if mine:
            verdicts = [str(line["verdict"]) for line in mine]
            counts = ", ".join(f"{verdicts.count(x)} {x}" for x in ("cut", "refused", "wrong", "traceback"))
            shares = [float(str(line["share_in_groups"])) for line in mine if line["verdict"] == "cut"]
            lines.append(f"{library}: {counts}; median share of parameters in groups {median(shares or [0]):.3f}")
    return lines


def _read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {line["model"]: dict(line) for line in csv.DictReader(file)}


def _write(path: Path, rows: dict[str, Row]) -> None:
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows.values())
    partial.replace(path)
