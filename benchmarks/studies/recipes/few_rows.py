"""Studies with a few rows or metrics of another study, so that many seeds are affordable."""

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.studies.metrics import CLIENT_MEAN, CLIENT_STD, LATE_STD
from benchmarks.studies.recipes.fedsam import AFFINE, FLATNESS, fedsam_cifar10, fedsam_small_clients
from benchmarks.studies.recipes.ramfed import (
    IST_DIVERGES,
    STAND_IN,
    ramfed_table2_cifar10,
    ramfed_table2_mnist,
    ramfed_table3_agnews,
    reprune_fields,
)
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Cell, Study
from fedraa.config.experiment import with_fields
from fedraa.config.overrides import split_paths

# Notes on rows and metrics that the studies of this module do not have.
UNUSED_NOTES = (AFFINE, FLATNESS, IST_DIVERGES, STAND_IN)


def ramfed_memory_agnews(scale: Scale) -> Study:
    """Compare RAM-Fed with RA-Fed and FedAvg at the level L, with FastText on AG News: RAM-Fed's Table 3."""
    rows = ("fedavg", "ra-fed L", "ram-fed L")
    return _take_rows(ramfed_table3_agnews(scale), "ramfed_memory_agnews", rows, "RAM-Fed, Table 3")


def ramfed_memory_cifar10(scale: Scale) -> Study:
    """Compare RAM-Fed with RA-Fed at the levels L and S, with a CNN on CIFAR-10: RAM-Fed's Table 2."""
    rows = ("ra-fed L", "ram-fed L", "ra-fed S", "ram-fed S")
    return _take_rows(ramfed_table2_cifar10(scale), "ramfed_memory_cifar10", rows, "RAM-Fed, Table 2")


def ramfed_prunefl(scale: Scale) -> Study:
    """Compare RAM-Fed on a quarter of an MLP with PruneFL on half of it, also with many short rounds: Table 2."""
    whole = replace(ramfed_table2_mnist(scale), reference="prunefl L")
    study = _take_rows(whole, "ramfed_prunefl", ("prunefl L", "ram-fed S"), "RAM-Fed, Table 2")
    if scale.paper:
        return study
    steps = {"dirichlet": 0.1, "local_epochs": None, "local_steps": 5, "rounds": 400, "eval_every": 20}
    few = {"dirichlet": 0.01, "local_epochs": 1, "lr": 0.01, "rounds": 100, "eval_every": 5}
    columns: dict[str, dict[str, Any]] = {
        "α = 0.1, 5 local steps": steps,
        "α = 0.01, 3 of 10 clients": few | {"participation": "sample:3"},
    }
    table = {cell.row: cell for cell in study.cells}
    cells = []
    for (column, common), (row, cell) in product(columns.items(), table.items()):
        fields = split_paths(common | reprune_fields(row, common["rounds"]), cell.experiment.override)
        paper = cell.paper if "0.1," in column else {}
        cells.append(Cell(row, with_fields(cell.experiment, fields), column, paper))
    notes = (
        "The column with 5 local steps has 400 rounds. The paper also has five local steps.",
        "The column with 3 of 10 clients has 100 rounds of one epoch, and the learning rate 0.01. In the paper all "
        "clients join every round.",
    )
    return replace(study, cells=(*study.cells, *cells), notes=(*study.notes, *notes))


def fedsam_deviation(scale: Scale) -> Study:
    """Compare how the accuracies of clients deviate with FedSAM, MoFedSAM, FedAvg and FedCM: FedSAM's Table 1."""
    rows = ("fedavg", "fedsam", "fedcm", "mofedsam")
    return _average_deviation(_take_rows(fedsam_cifar10(scale), "fedsam_deviation", rows, "FedSAM, Table 1"))


def fedsam_small_deviation(scale: Scale) -> Study:
    """Compare how the accuracies of clients with few images deviate after ten local epochs: FedSAM's Table 1."""
    whole = fedsam_small_clients(scale)
    study = _take_rows(whole, "fedsam_small_deviation", whole.rows, "FedSAM, Table 1")
    every = scale.pick_value(4, 4, 10)
    cells = [replace(cell, experiment=with_fields(cell.experiment, {"eval_every": every})) for cell in study.cells]
    title = f"The deviations in {whole.name}, averaged over evaluations (FedSAM, Table 1)"
    note = "At this learning rate a few tasks diverge. The server refuses their updates."
    return _average_deviation(replace(study, title=title, cells=cells, notes=(*study.notes, note)))


def _average_deviation(study: Study) -> Study:
    """Return a study of the clients' accuracies, with their mean deviation over the last evaluations."""
    cells = []
    for cell in study.cells:
        # The paper has one number for the deviation. Both metrics are compared with it.
        deviation = cell.paper[CLIENT_STD.name]
        paper = {CLIENT_MEAN.name: cell.paper[CLIENT_MEAN.name], CLIENT_STD.name: deviation, LATE_STD.name: deviation}
        cells.append(replace(cell, paper=paper))
    every = study.cells[0].experiment.eval_every
    note = (
        f"The deviation changes from round to round. `{LATE_STD.name}` has less noise, because it is a mean over "
        f"evaluations. There is one every {every} rounds."
    )
    return replace(study, cells=cells, metrics=(CLIENT_MEAN, CLIENT_STD, LATE_STD), notes=(*study.notes, note))


def _take_rows(whole: Study, name: str, rows: Collection[str], source: str) -> Study:
    """Return a study that has only some rows of the study `whole`. `source` is the paper and its table."""
    title = f"A few rows of {whole.name}, with many seeds ({source})"
    cells = [cell for cell in whole.cells if cell.row in rows]
    notes = [note for note in whole.notes if note not in UNUSED_NOTES]
    return replace(whole, name=name, title=title, cells=cells, notes=notes)
