"""The output of `fedraa plan --data`: the data partition of a run as a table and a picture."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich import box
from rich.markup import escape
from rich.table import Table

from fedraa.cli.console import print_line, print_table
from fedraa.components.text import text_of
from fedraa.data import Federated
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import InputError
from fedraa.numbers import format_count
from fedraa.report.clients import Counts, label_counts, write_clients_picture

# With more clients, the table shows only a few of them: those at the `QUANTILES` of the number of samples.
MAX_CLIENTS = 20
# More columns of labels would not fit into 80 characters.
MAX_CLASSES = 10
QUANTILES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


def show_data(spec: RunSpec, folder: Path) -> None:
    """Print the data partition as a table, and write its picture into `folder`.

    Raises InputError if the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"the folder cannot be created: {error.strerror}"
        raise InputError("data", problem, got=folder, hint="give another folder") from None
    print_table(data_table(spec.data, text_of(spec.experiment.partition)))
    counts = label_counts(spec.data)
    if counts is not None:
        mean = label_concentration(counts).mean()
        whole = label_concentration(counts.sum(axis=0))
        print_line(
            f"label skew     sum of squared label shares: {mean:.3f} (mean of the clients), {whole:.3f} (all samples)"
        )
    clients = format_count(len(spec.data.sizes), "client")
    title = f"{spec.data.dataset.name}, {text_of(spec.experiment.partition)}, {clients}"
    print_line(f"picture        {write_clients_picture(spec.data, folder, title)}")


def label_concentration(counts: Counts) -> npt.NDArray[np.float64]:
    """Return the sum of the squared label fractions, from the number of samples of each label [..., labels].

    It is 1 if all samples have the same label, and 1 / L for L equally frequent labels.
    """
    shares = counts / np.maximum(1, counts.sum(axis=-1, keepdims=True))
    return np.asarray((shares**2).sum(axis=-1))


def data_table(data: Federated, partition: object) -> Table:
    """Return a table with a row per client, or with rows for some clients if there are over `MAX_CLIENTS`.

    The columns are the numbers of training and test samples, the number of different labels, and the
    fraction of the most frequent label (`top`). If the data have at most `MAX_CLASSES` labels, further columns have the
    number of samples of each label.
    """
    sizes = data.sizes
    test_sizes = np.diff(data.test_offsets)
    counts = label_counts(data)
    title = f"{data.dataset.name}: {sizes.sum()} samples of {format_count(len(sizes), 'client')}, {partition}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0, pad_edge=False, collapse_padding=True)
    if len(sizes) > MAX_CLIENTS:
        first = "by size"
        rows = _quantile_clients(data)
    else:
        first = "client"
        rows = _all_clients(data)
    columns = ["train", "test"]
    shows_labels = counts is not None and counts.shape[1] <= MAX_CLASSES
    if counts is not None:
        columns += ["labels", "top"]
        if shows_labels:
            columns += map(str, range(counts.shape[1]))
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    for name, client in rows:
        cells = [escape(name), str(sizes[client]), str(test_sizes[client])]
        if counts is not None:
            cells += _label_cells(counts[client], shows_labels)
        table.add_row(*cells)
    return table


def _label_cells(counts: Counts, shows_labels: bool) -> list[str]:
    """Return the table cells about a client's labels.

    The cells contain the number of different labels and the fraction of the most frequent label. If `shows_labels` is
    True, further cells contain the number of samples of each label.
    """
    total = max(1, int(counts.sum()))
    cells = [str(int((counts > 0).sum())), f"{counts.max() / total:.0%}"]
    if shows_labels:
        cells += map(_short_count, counts.tolist())
    return cells


def _all_clients(data: Federated) -> list[tuple[str, int]]:
    names = data.names or map(str, range(len(data.sizes)))
    return [(name, client) for client, name in enumerate(names)]


def _quantile_clients(data: Federated) -> list[tuple[str, int]]:
    """Return pairs: the name of a quantile, and the client whose number of samples is at this quantile."""
    by_size = np.argsort(data.sizes, kind="stable")
    names = {0.0: "smallest", 0.5: "median", 1.0: "largest"}
    last = len(by_size) - 1
    return [(names.get(place, f"{place:.0%}"), int(by_size[round(place * last)])) for place in QUANTILES]


def _short_count(count: int) -> str:
    """Return a count as a short text, such as 9999 or 12k; a dot for zero."""
    if count == 0:
        return "·"
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.0f}k"
