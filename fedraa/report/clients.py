"""The clients and their labels as a table and as a picture."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraa.data import Federated
from fedraa.rundir.atomic_files import replace_file
from fedraa.rundir.plots import literal_text

Counts = npt.NDArray[np.int64]

# Maximum numbers of clients and of labels in the picture.
MAX_CLIENTS = 60
MAX_LABELS = 60


def label_counts(data: Federated) -> Counts | None:
    """Return the number of training samples [clients, classes]; None if labels are unknown."""
    labels = data.labels
    classes = data.dataset.classes
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu" or not classes:
        return None
    owner = np.repeat(np.arange(len(data.sizes)), data.sizes)
    return np.bincount(owner * classes + labels, minlength=len(data.sizes) * classes).reshape(-1, classes)


def write_clients_picture(data: Federated, folder: Path, title: str) -> Path:
    """Write clients.png, a map of labels by clients.

    The darker a cell, the larger the fraction of the client's samples with this label.

    Args:
        data: The partitioned data.
        folder: The folder of the picture, which exists.
        title: The title of the picture.
    """
    # matplotlib is slow to import.
    from matplotlib.figure import Figure

    counts = label_counts(data)
    sizes = data.sizes
    chosen = np.arange(len(sizes))
    # If there are too many clients, they are sorted by size, and the picture shows MAX_CLIENTS evenly spaced ones.
    if len(sizes) > MAX_CLIENTS:
        by_size = np.argsort(-sizes, kind="stable")
        chosen = by_size[np.linspace(0, len(sizes) - 1, MAX_CLIENTS).astype(np.int64)]
    names = [literal_text(_short_name(data, client)) for client in chosen.tolist()]
    height = 1.6 + 0.2 * len(chosen)
    if counts is None:
        figure = Figure(figsize=(6, height), layout="constrained")
        left = right = figure.subplots()
    else:
        figure = Figure(figsize=(8, height), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
        shares = counts[chosen] / np.maximum(1, sizes[chosen, None])
        if shares.shape[1] > MAX_LABELS:
            shares = shares[:, np.argsort(-counts.sum(axis=0), kind="stable")[:MAX_LABELS]]
            left.set_xlabel(f"the {MAX_LABELS} most frequent of {counts.shape[1]} labels")
        else:
            left.set_xlabel("label")
        image = left.imshow(shares, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
        figure.colorbar(image, ax=left, location="top", shrink=0.5, label="share of the client's samples")
        if shares.shape[1] <= 20:
            left.set_xticks(range(shares.shape[1]))
    right.barh(np.arange(len(chosen)), sizes[chosen], color="#4878a8")
    right.set_xlabel("samples")
    left.set_yticks(range(len(chosen)), names, fontsize=7)
    left.set_ylabel("client")
    if len(chosen) < len(sizes):
        left.set_ylabel(f"client, {MAX_CLIENTS} of {len(sizes)} by size")
    left.set_ylim(len(chosen) - 0.5, -0.5)
    figure.suptitle(literal_text(title))
    path = folder / "clients.png"
    with replace_file(path) as stream:
        figure.savefig(stream, format="png", dpi=120)
    return path


def _short_name(data: Federated, client: int) -> str:
    name = str(client) if data.names is None else data.names[client]
    if len(name) < 20:
        return name
    return name[:18] + "…"
