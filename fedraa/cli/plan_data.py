"""How the samples of a run are dealt, shown."""

from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from fedraa.cli.display import say, show
from fedraa.components.text import text_of
from fedraa.data import Federated
from fedraa.engine.run_spec import RunSpec
from fedraa.report.clients import Counts, label_counts, picture

MOST_CLIENTS = 20  # that are shown one by one; of more, those at some places by size
MOST_CLASSES = 10  # whose counts fit into 80 columns
PLACES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


def show_data(spec: RunSpec, folder: Path) -> None:
    """Prints the table and writes the picture into `folder`."""
    show(data_table(spec.data, text_of(spec.experiment.partition)))
    title = f"{spec.data.dataset.name}, {text_of(spec.experiment.partition)}, {len(spec.data.sizes)} clients"
    say(f"picture        {picture(spec.data, folder, title)}")


def data_table(data: Federated, partition: object) -> Table:
    """A row per client: its training and test samples, how many labels it has and of which share is of the commonest;
    and the counts of each, where these are few."""
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
    """Clients at some places from the smallest to the largest."""
    by_size = np.argsort(data.sizes, kind="stable")
    names = {0.0: "smallest", 0.5: "median", 1.0: "largest"}
    last = len(by_size) - 1
    return [(names.get(place, f"{place:.0%}"), int(by_size[round(place * last)])) for place in PLACES]


def _short(count: int) -> str:
    """Four letters at most, up to a million; nothing for none."""
    return "·" if not count else str(count) if count < 10_000 else f"{count / 1000:.0f}k"
