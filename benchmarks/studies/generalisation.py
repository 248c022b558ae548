"""The difference between the results of the final model on training data and on test data."""

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.studies.metrics import SHARE, Metric
from fedraa.engine.build import build_run
from fedraa.rundir.file_names import MODEL
from fedraa.rundir.history import History

BATCH = 1024
# The maximum number of training samples that are evaluated. They are evenly spaced.
MAX_SAMPLES = 10_000


# Several metrics of a run use this result, so it is cached.
@lru_cache(maxsize=1)
def on_training_data(directory: Path) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy of a run's final full model on all clients' training data."""
    spec = build_run(History(directory).experiment)
    module = spec.traced.module
    module.load_state_dict(torch.load(directory / MODEL, weights_only=True), assign=True)
    module.eval()
    dataset = spec.data.dataset
    rows = np.linspace(0, len(dataset.y_train) - 1, min(MAX_SAMPLES, len(dataset.y_train))).astype(np.int64)
    loss = correct = 0.0
    with torch.inference_mode():
        for batch in np.array_split(rows, -(-len(rows) // BATCH)):
            labels = torch.from_numpy(dataset.y_train[batch])
            logits = module(torch.from_numpy(dataset.x_train[batch]))
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            correct += int((logits.argmax(1) == labels).sum())
    return loss / len(rows), correct / len(rows)


def _loss_gap(history: History) -> float:
    return float(history.evals["loss"].iloc[-1]) - on_training_data(history.directory)[0]


def _accuracy_gap(history: History) -> float:
    return 100 * (on_training_data(history.directory)[1] - float(history.evals["accuracy"].iloc[-1]))


TRAIN_ACCURACY = Metric("train accuracy %", lambda history: 100 * on_training_data(history.directory)[1], within=SHARE)
LOSS_GAP = Metric("loss gap", _loss_gap, "less", ".3f", within=(-math.inf, math.inf))
ACCURACY_GAP = Metric("accuracy gap %", _accuracy_gap, "less", within=(-100.0, 100.0))
