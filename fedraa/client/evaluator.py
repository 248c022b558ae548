"""The full model on the test set, and on each client's own share of it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.client.metrics import NamedMetric, mean
from fedraa.client.personal import EvaluationData, Personal
from fedraa.data import Federated
from fedraa.data.tree import Tree, mapped, take
from fedraa.messages import Evaluation, Vector
from fedraa.models.statistics import equal_parts, reestimate_over, reestimate_statistics
from fedraa.objectives import Classification, Objective
from fedraa.submodels import Traced, drop_weights, load, twin

BATCH = 1024


class Evaluator:
    """Evaluates flat parameter vectors on `device`; keeps a module there, without weights between evaluations."""

    def __init__(
        self,
        traced: Traced,
        data: Federated,
        *,
        device: str = "cpu",
        metrics: Sequence[NamedMetric] = (),
        objective: Objective | None = None,
        personal: Personal | None = None,
    ) -> None:
        """`data` has the training samples that statistics of batch norms are taken over, and no others.

        `personal` trains the clients whose shards are in `data.personal`.
        """
        self._device = torch.device(device)
        self._module = twin(traced.module)
        drop_weights(self._module)
        self._module.to(self._device)
        self._data = data
        self._metrics, self._personal = metrics, personal
        self._objective = objective or Classification()
        self._figures = self._objective.summary()
        self._owners, self._clients = owners(data)

    def evaluate(self, params: Vector) -> Evaluation:
        """The objective's figures, its loss and the user's metrics of the model with these parameters [d]."""
        started = time.perf_counter()
        self.prepare(params)
        x, y = self._data.dataset.x_test, self._data.dataset.y_test
        values = {metric.name: np.empty(len(y)) for metric in self._metrics}
        sums: dict[str, npt.NDArray[np.float64]] = {}
        loss = 0.0
        with torch.no_grad():
            for start in range(0, len(y), BATCH):
                rows = slice(start, start + BATCH)
                targets = self._there(y[rows])
                inputs = mapped(self._there, take(x, rows))
                result = self._objective.forward(self._module, inputs)
                outputs = self._objective.outputs(result)
                loss += self._objective.summed_loss(outputs, targets)
                self._add(sums, self._owners[rows], self._objective.sums(outputs, targets))
                for metric in self._metrics:
                    values[metric.name][rows] = metric.values(outputs, targets)
        personal = {} if self._personal is None else self._personalised(self._personal, params)
        drop_weights(self._module)
        figures = self._summed(loss, sums) | personal | {name: mean(each) for name, each in values.items()}
        return Evaluation(figures, time.perf_counter() - started)

    def prepare(self, params: Vector) -> nn.Module:
        """The module with these parameters, ready for inference; on a CPU they are the array's own memory.

        Running statistics never travel: a model with batch normalisation first re-estimates them in one pass
        over training samples (HeteroFL's static batch normalisation).
        """
        source = self._data.source
        if not getattr(self._data, "streamed", False) or source is None:
            return self._prepared(params, self._data.x_train)
        load(self._module, params, writable=False)
        reestimate_over(self._module, source.parts(equal_parts(int(self._data.sizes.sum()), BATCH)))
        return self._module.eval()

    def _prepared(self, params: Vector, x: Tree) -> nn.Module:
        load(self._module, params, writable=False)
        reestimate_statistics(self._module, x, batch=BATCH)
        return self._module.eval()

    def _personalised(self, personal: Personal, params: Vector) -> dict[str, float]:
        """The main figure of each chosen client on its own test samples, after its own training."""
        found = []
        assert isinstance(self._data, EvaluationData)
        for client, (x, y) in self._data.personal.items():
            self._prepared(personal.train(params, client, x, y), x)
            rows = self._data.test_order[self._data.test_offsets[client] : self._data.test_offsets[client + 1]]
            sums: dict[str, npt.NDArray[np.float64]] = {}
            with torch.no_grad():
                for start in range(0, len(rows), BATCH):
                    some = rows[start : start + BATCH]
                    targets = self._there(self._data.dataset.y_test[some])
                    inputs = mapped(self._there, take(self._data.dataset.x_test, some))
                    outputs = self._objective.outputs(self._objective.forward(self._module, inputs))
                    self._add(sums, np.zeros(len(some), np.int64), self._objective.sums(outputs, targets))
            if sums["count"][0] > 0:
                found.append(self._objective.of_clients({name: each[:1] for name, each in sums.items()})[0])
        return self._over_clients("personal", np.array(found))

    def _over_clients(self, name: str, values: npt.NDArray[np.float64]) -> dict[str, float]:
        """Mean, standard deviation and worst of a figure per client."""
        if not values.size:
            return {f"{name}_{what}": float("nan") for what in ("mean", "std", "worst")}
        worst = values.min() if self._figures.better(f"{name}_worst") == "max" else values.max()
        with np.errstate(over="ignore", invalid="ignore"):  # of perplexities that are huge or infinite
            middle, spread = values.mean(), values.std()
        return {f"{name}_mean": float(middle), f"{name}_std": float(spread), f"{name}_worst": float(worst)}

    def _there(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.copy()).to(self._device)

    def _add(
        self, sums: dict[str, npt.NDArray[np.float64]], owners: npt.NDArray[np.int64], new: Mapping[str, Tensor]
    ) -> None:
        """What was measured of samples [b, ...] goes to the sums of their owners [clients + 1, ...]."""
        for name, each in new.items():
            measured = each.cpu().numpy()
            if name not in sums:
                sums[name] = np.zeros((self._clients + 1, *measured.shape[1:]))
            np.add.at(sums[name], owners, measured)

    def _summed(self, loss: float, sums: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, float]:
        """The figures of all samples, and of each client's own, of those that have any."""
        whole = {name: each.sum(axis=0) for name, each in sums.items()}
        tested = np.flatnonzero(sums["count"][:-1] > 0)
        clients = self._objective.of_clients({name: each[tested] for name, each in sums.items()})
        return {
            **self._objective.figures(whole),
            "loss": float(loss / whole["count"]),
            **self._over_clients("client", clients),
        }


def owners(data: Federated) -> tuple[npt.NDArray[np.int64], int]:
    """Who owns each test sample [n], numbered among those that own any, and how many these are; that number: nobody."""
    counts = np.diff(data.test_offsets)
    counts, clients = counts[counts > 0], int((counts > 0).sum())
    found = np.full(len(data.dataset.y_test), clients, np.int64)
    found[data.test_order] = np.repeat(np.arange(clients), counts)
    return found, clients
