"""Test which models of torchvision, timm and transformers fedraa can cut into submodels.

    python -m benchmarks cut_models                                   # all models that the table does not have
    python -m benchmarks cut_models --only timm:xcit_tiny_12_p16_224  # this model, even if the table has it

Each model's row is written to `benchmarks/results/cut_models.csv` when its test ends. The same command therefore
continues a stopped test. The verdicts:

    cut        random submodels of the model compute the right values (see `cut_check`)
    refused    fedraa refuses to cut the model, with an error of one sentence
    wrong      a submodel computes wrong values
    traceback  any other error

timm and transformers are in the extra `zoo`.
"""

from __future__ import annotations

import gc
import time
import warnings
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console

from benchmarks.system.cut_check import check_cut, grouped_share, random_cut
from benchmarks.system.cut_zoo import LIBRARIES, build_zoo_model, list_models
from benchmarks.system.option_checks import refuse_unknown_names
from benchmarks.system.rows import open_table, write_table
from fedraa.data.tree import Tree
from fedraa.submodels import IndexSet, Traced, measure_cost, trace_module

RESULTS = Path(__file__).parents[1] / "results" / "cut_models.csv"
# Models below MIDDLE parameters get two checks, larger models get one. From LARGE parameters on, a submodel with an
# eighth of the units is compared with one that has a quarter, because the full model may exceed the memory.
MIDDLE, LARGE = 15_000_000, 100_000_000
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


def survey_model(name: str) -> Row:
    """Trace a model, check random cuts of it, and return its table row."""
    module, example = build_zoo_model(name)
    start = time.process_time()
    try:
        traced = trace_module(module, example)
    except ValueError as error:
        return _make_row(name, "refused", str(error))
    # Any other error is a defect of the tracer. The test reports it and continues.
    except Exception as error:
        return _make_row(name, "traceback", f"{type(error).__name__}: {error}")
    seconds = time.process_time() - start
    del module
    if not traced.groups:
        return _make_row(name, "refused", f"no part of it can be cut: {traced.explain_uncut()}")
    try:
        _check_all(traced, example)
        halves = _half_cost(traced, example)
    except AssertionError as error:
        return _make_row(name, "wrong", str(error))
    # Any other error is a defect of the tracer. The test reports it and continues.
    except Exception as error:
        return _make_row(name, "traceback", f"{type(error).__name__}: {error}")
    sizes: Row = {
        "parameters": traced.size,
        "groups": len(traced.groups),
        "share_in_groups": round(grouped_share(traced), 4),
    }
    return _make_row(name, "cut", traced.explain_uncut()) | sizes | halves | {"trace_seconds": round(seconds, 2)}


def _make_row(name: str, verdict: str, reason: str) -> Row:
    return {"model": name, "verdict": verdict, "reason": " ".join(reason.split())}


def _check_all(traced: Traced, example: Tree) -> None:
    rng = np.random.default_rng(0)
    if traced.size < LARGE:
        check_cut(traced, example, random_cut(traced, rng), 0)
        if traced.size < MIDDLE:
            check_cut(traced, example, random_cut(traced, rng), 1)
        return
    # The full model in float64, with gradients, may exceed the memory. So two submodels are compared.
    outer = _half_of(_half_of(traced.full(), rng), rng)
    check_cut(traced, example, _half_of(outer, rng), 0, outer)


def _half_of(indices: IndexSet, rng: np.random.Generator) -> IndexSet:
    return tuple(np.sort(rng.permutation(kept)[: -(-len(kept) // 2)]) for kept in indices)


def _half_cost(traced: Traced, example: Tree) -> Row:
    """Return the cost of a half-width submodel as a fraction of the full model's cost."""
    half = tuple(max(1, group.size // 2) for group in traced.groups)
    full, cut = (measure_cost(traced, widths, example) for widths in (traced.widths(traced.full()), half))
    assert cut.params < full.params, "a cut to half of the units has no fewer parameters"
    assert cut.flops < full.flops, "a cut to half of the units has no fewer FLOPs"
    return {
        "half_parameters": round(cut.params / full.params, 4),
        "half_flops": round(cut.flops / full.flops, 4),
        "half_memory": round(cut.memory / full.memory, 4),
    }


def main(only: tuple[str, ...] = (), libraries: tuple[str, ...] = tuple(LIBRARIES), out: Path = RESULTS) -> None:
    """Test models and add a row to the table for each.

    Args:
        only: Names of models, `library:name`. They are tested even if the table has them (default: all models that are
            not in the table).
        libraries: The tested libraries.
        out: The CSV file of the table.
    """
    refuse_unknown_names("libraries", libraries, LIBRARIES)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: dict[str, Row] = {line["model"]: dict(line) for line in open_table(out, COLUMNS)}
    names = list(only)
    if not names:
        for library in libraries:
            names += [f"{library}:{model}" for model in list_models(library) if f"{library}:{model}" not in rows]
    for name in names:
        rows[name] = survey_model(name)
        Console().print(name, rows[name]["verdict"], rows[name].get("share_in_groups", rows[name]["reason"]))
        write_table(out, COLUMNS, rows.values())
        gc.collect()
    for line in summarise_libraries(rows):
        Console().print(line)


def summarise_libraries(rows: dict[str, Row]) -> list[str]:
    """Return one line per library with the number of its models by verdict."""
    lines = []
    for library in LIBRARIES:
        mine = [line for name, line in rows.items() if name.startswith(f"{library}:")]
        if mine:
            verdicts = [str(line["verdict"]) for line in mine]
            counts = ", ".join(f"{verdicts.count(x)} {x}" for x in ("cut", "refused", "wrong", "traceback"))
            shares = [float(str(line["share_in_groups"])) for line in mine if line["verdict"] == "cut"]
            lines.append(f"{library}: {counts}; median share of parameters in groups {median(shares or [0]):.3f}")
    return lines
