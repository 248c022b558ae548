"""Studies with a few rows of another study, and no other change, so that many seeds are affordable."""

from collections.abc import Collection
from dataclasses import replace

from benchmarks.studies.metrics import CLIENT_MEAN, CLIENT_STD
from benchmarks.studies.recipes.fedsam import fedsam_cifar10
from benchmarks.studies.recipes.ramfed import ramfed_table2_cifar10, ramfed_table3_agnews
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Study


def ramfed_memory_cifar10(scale: Scale) -> Study:
    """Compare RAM-Fed with RA-Fed at the levels L and S, with a CNN on CIFAR-10: RAM-Fed's Table 2."""
    rows = ("ra-fed L", "ra-fed S", "ram-fed L", "ram-fed S")
    return _keep_rows(ramfed_table2_cifar10(scale), "ramfed_memory_cifar10", rows, "RAM-Fed, Table 2")


def ramfed_memory_agnews(scale: Scale) -> Study:
    """Compare RAM-Fed with RA-Fed and FedAvg at the level L, with FastText on AG News: RAM-Fed's Table 3."""
    rows = ("fedavg", "ra-fed L", "ram-fed L")
    return _keep_rows(ramfed_table3_agnews(scale), "ramfed_memory_agnews", rows, "RAM-Fed, Table 3")


def fedsam_deviation(scale: Scale) -> Study:
    """Compare the deviations of clients with and without the perturbation, on CIFAR-10: FedSAM's Table 1.

    The runs are evaluated only at their end.
    """
    rows = ("fedavg", "fedsam", "fedcm", "mofedsam")
    study = _keep_rows(fedsam_cifar10(scale), "fedsam_deviation", rows, "FedSAM, Table 1")
    metrics = (CLIENT_MEAN, CLIENT_STD)
    cells = []
    for cell in study.cells:
        experiment = cell.experiment.model_copy(update={"eval_every": cell.experiment.rounds})
        cells.append(
            replace(cell, experiment=experiment, paper={metric.name: cell.paper[metric.name] for metric in metrics})
        )
    return replace(study, cells=cells, metrics=metrics, along=None)


def _keep_rows(study: Study, name: str, rows: Collection[str], source: str) -> Study:
    """Return a study of some rows of `study`. `source` is the paper's table."""
    cells = [cell for cell in study.cells if cell.row in rows]
    return replace(study, name=name, title=f"A few rows of {study.name}, with many seeds ({source})", cells=cells)
