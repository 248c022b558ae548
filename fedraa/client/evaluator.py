"""The full model on the test set, and on each client's own share of it."""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from fedraa.client.metrics import NamedMetric, mean
from fedraa.data import Federated
from fedraa.messages import Evaluation, Vector
from fedraa.models.statistics import reestimate_statistics
from fedraa.submodels import Traced, drop_weights, load, twin

BATCH = 1024
# Enough samples for the statistics of a normalisation layer; more only costs time.
STATISTICS_SAMPLES = 10_000


class Evaluator:
    """Evaluates flat parameter vectors on `device`; keeps a module there, without weights between evaluations."""

    def __init__(
        self, traced: Traced, data: Federated, *, device: str = "cpu", metrics: Sequence[NamedMetric] = ()
    ) -> None:
        self._device = torch.device(device)
        self._module = twin(traced.module)
        drop_weights(self._module)
        self._module.to(self._device)
        self._data = data
        self._metrics = metrics

    def evaluate(self, params: Vector) -> Evaluation:
        """Accuracy, mean cross-entropy and the user's metrics of the model with these parameters [d]."""
        started = time.perf_counter()
        self.prepare(params)
        x, y = self._data.dataset.x_test, self._data.dataset.y_test
        correct = np.empty(len(y), bool)
        values = {metric.name: np.empty(len(y)) for metric in self._metrics}
        loss = 0.0
        with torch.inference_mode():
            for start in range(0, len(y), BATCH):
                labels = torch.from_numpy(y[start : start + BATCH].copy()).to(self._device)
                logits = self._module(torch.from_numpy(x[start : start + BATCH].copy()).to(self._device))
                loss += float(F.cross_entropy(logits, labels, reduction="sum"))
                correct[start : start + BATCH] = (logits.argmax(1) == labels).cpu().numpy()
                for metric in self._metrics:
                    values[metric.name][start : start + BATCH] = metric.values(logits, labels)
        drop_weights(self._module)
        clients = self._client_accuracy(correct)
        return Evaluation(
            accuracy=float(correct.mean()),
            loss=loss / len(y),
            client_mean=float(clients.mean()),
            client_std=float(clients.std()),
            client_worst=float(clients.min()),
            seconds=time.perf_counter() - started,
            metrics={name: mean(each) for name, each in values.items()},
        )

    def prepare(self, params: Vector) -> nn.Module:
        """The module with these parameters, ready for inference; on a CPU they are the array's own memory.

        Running statistics never travel: a model with batch normalisation first re-estimates them in one pass
        over training samples (HeteroFL's static batch normalisation).
        """
        load(self._module, params, writable=False)
        reestimate_statistics(self._module, self._data.x_train[:STATISTICS_SAMPLES], batch=BATCH)
        return self._module.eval()

    def _client_accuracy(self, correct: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Accuracy of every client that has a test sample."""
        sums = np.concatenate(([0], np.cumsum(correct[self._data.test_order])))
        counts = np.diff(self._data.test_offsets)
        hits = sums[self._data.test_offsets[1:]] - sums[self._data.test_offsets[:-1]]
        return np.asarray(hits[counts > 0] / counts[counts > 0], np.float64)
