"""Studies with a few rows of another study, and no other change, so that many seeds are affordable."""

from dataclasses import replace

from benchmarks.studies.recipes.ramfed import ramfed_table3_agnews
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.study import Study

ROWS = ("fedavg", "ra-fed L", "ram-fed L")


def ramfed_memory_agnews(scale: Scale) -> Study:
    """Compare RAM-Fed with RA-Fed and FedAvg at the level L, with FastText on AG News: RAM-Fed's Table 3."""
    whole = ramfed_table3_agnews(scale)
    return replace(
        whole,
        name="ramfed_memory_agnews",
        title="A few rows of ramfed_table3_agnews, with many seeds (RAM-Fed, Table 3)",
        cells=[cell for cell in whole.cells if cell.row in ROWS],
    )
