"""The data partition of a run as a table and a picture."""

from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from fedraa.cli.display import say, show
from fedraa.components.text import text_of
from fedraa.data import Federated
from fedraa.engine.run_spec import RunSpec
from fedraa.report.clients import Counts, label_counts, picture

# Maximum number of clients that are shown one by one. Of more clients, some quantiles by size are shown.
MOST_CLIENTS = 20
# Maximum number of classes whose counts fit into 80 columns.
MOST_CLASSES = 10
PLACES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


def show_data(spec: RunSpec, folder: Path) -> None:
    """Print the table and write the picture into `folder`."""
    show(data_table(spec.data, text_of(spec.experiment.partition)))
    title = f"{spec.data.dataset.name}, {text_of(spec.experiment.partition)}, {len(spec.data.sizes)} clients"
    say(f"picture        {picture(spec.data, folder, title)}")


def data_table(data: Federated, partition: object) -> Table:
    """Return a table with a row per client.

    The columns are its training and test samples, the number of its labels, the share of the commonest one, and the
    counts of each label if there are few.
    """
    sizes, tested, counts = data.sizes, np.diff(data.test_offsets), label_counts(data)
    title = f"{data.dataset.name}: {sizes.sum()} samples dealt to {len(sizes)} clients, {partition}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0, pad_edge=False, collapse_padding=True)
    many = len(sizes) > MOST_CLIENTS
    few_classes = counts is not None and counts.shape[1] <= MOST_CLASSES
    table.add_column("by size" if many else "client", max_width=9, no_wrap=True)
    for name in ("train", "test", *(["labels", "top"] if counts is not None else [])):
        table.add_column(name, justify="right")
    for label in range(counts.shape[1] if counts is not None and few_classes else 0):
        table.add_column(str(label), justify="right")
    for name, client in _places(data) if many else _all(data):
        row = [name, str(sizes[client]), str(tested[client])]
        if counts is not None:
            row += _labels(counts[client], few_classes)
        table.add_row(*row)
    return table


def _labels(counts: Counts, listed: bool) -> list[str]:
    total = max(1, int(counts.sum()))
    return [
        str(int((counts > 0).sum())),
        f"{counts.max() / total:.0%}",
        *(map(_short, counts.tolist()) if listed else ()),
    ]


def _all(data: Federated) -> list[tuple[str, int]]:
    return [(data.names[n] if data.names else str(n), n) for n in range(len(data.sizes))]


def _places(data: Federated) -> list[tuple[str, int]]:
    """Return clients at some quantiles from the smallest to the largest."""
    by_size = np.argsort(data.sizes, kind="stable")
    names = {0.0: "smallest", 0.5: "median", 1.0: "largest"}
    last = len(by_size) - 1
    return [(names.get(place, f"{place:.0%}"), int(by_size[round(place * last)])) for place in PLACES]


def _short(count: int) -> str:
    """Return a count with at most four characters below a million; a dot for zero."""
    return "·" if not count else str(count) if count < 10_000 else f"{count / 1000:.0f}k"
