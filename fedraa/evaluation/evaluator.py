"""Evaluation of the full model on the test set, and on each client's test samples."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.client.local_training import LocalTraining
from fedraa.client.training_state import TrainingState, freeze_ranges
from fedraa.components.calls import convert_custom_errors
from fedraa.data import Federated
from fedraa.data.tree import Tree, map_tree, take_rows
from fedraa.evaluation.metrics import NamedMetric, exact_mean
from fedraa.evaluation.personal import EvaluationData, PersonalModels
from fedraa.messages import Evaluation, State, Vector
from fedraa.models.statistics import copy_buffers, part_sizes, put_buffers, reestimate_over, reestimate_statistics
from fedraa.objectives import Classification, Objective
from fedraa.submodels import Traced, copy_structure, drop_weights, load_parameters

BATCH = 1024
# The kept values at the start of a run. No client has trained yet, so no client has a personal model.
NO_KEPT_VALUES: State = {"clients": np.zeros(0, np.int64)}

Buffers = dict[str, Tensor | None]
# The success of a backdoor attack.
ATTACK_SUCCESS = "attack_success"


class Trigger(Protocol):
    """A change of inputs. For the changed inputs, a model with a backdoor predicts the class `target`."""

    target: int

    def stamp(self, x: Tree) -> Tree:
        """Return inputs [n, ...] with the trigger."""


class Evaluator:
    """An evaluator that loads flat parameter vectors into a module on `device`."""

    def __init__(
        self,
        traced: Traced,
        data: EvaluationData,
        *,
        device: str = "cpu",
        metrics: Sequence[NamedMetric] = (),
        objective: Objective | None = None,
        personal: PersonalModels | None = None,
        state: TrainingState | None = None,
        trigger: Trigger | None = None,
    ) -> None:
        """Create the module on the device.

        Args:
            traced: The model.
            data: The test data, and the training samples on which the buffers of the model are estimated.
            device: Device of the evaluations.
            metrics: Custom metrics.
            objective: Computes the loss and the built-in metrics (default: classification).
            personal: Returns the personal models of the clients that have training data in `data.personal`.
            state: Names the buffers that training changes.
            trigger: The trigger of a backdoor attack. Its success then is a metric.
        """
        self._device = torch.device(device)
        self._module = copy_structure(traced.module)
        drop_weights(self._module)
        self._module.to(self._device)
        self._state = state or TrainingState()
        self._start: Buffers = {}
        if self._state.changes:
            self._start = copy_buffers(self._module)
        self._data = data
        self._metrics = metrics
        self._personal = personal
        self._objective = objective or Classification()
        self._metric_spec = self._objective.summary()
        self._trigger = trigger
        self._owners, self._clients = number_owners(data)

    def evaluate(self, params: Vector, kept: State | None = None) -> Evaluation:
        """Return the loss and all metrics of a model, and the results of single clients.

        Args:
            params: The model [d].
            kept: The personal values of the clients that have trained, as `ClientStates.copy_rows` returns them.

        Raises:
            InputError: A custom model, objective or metric failed.
        """
        with convert_custom_errors("objective", self._objective):
            return self._evaluate(params, kept or NO_KEPT_VALUES)

    def _evaluate(self, params: Vector, kept: State) -> Evaluation:
        started = time.perf_counter()
        self.prepare(params)
        x, y = self._data.dataset.x_test, self._data.dataset.y_test
        values = {metric.name: np.empty(len(y)) for metric in self._metrics}
        sums: dict[str, npt.NDArray[np.float64]] = {}
        loss = 0.0
        with torch.no_grad():
            for rows in self._batch_slices(len(y)):
                targets = self._to_device(y[rows])
                outputs = self._compute_outputs(map_tree(self._to_device, take_rows(x, rows)), len(targets))
                loss += self._objective.summed_loss(outputs, targets)
                self._add_sums(sums, self._owners[rows], self._objective.sums(outputs, targets))
                for metric in self._metrics:
                    values[metric.name][rows] = metric.values(outputs, targets)
        metrics = self._summarise_sums(loss, sums)
        personal: dict[int, float] | None = None
        if self._personal is not None:
            personal = self._evaluate_personal(params, kept)
            metrics |= self._over_clients("personal", np.array(list(personal.values())))
        metrics |= {name: exact_mean(numbers) for name, numbers in values.items()}
        if self._trigger is not None:
            metrics[ATTACK_SUCCESS] = self._attack_success(self._trigger, params)
        drop_weights(self._module)
        clients = self._client_results(sums, personal)
        return Evaluation(metrics, time.perf_counter() - started, clients)

    def _attack_success(self, trigger: Trigger, params: Vector) -> float:
        """Return the share of inputs with the trigger that are classified as the target class.

        The inputs are the test samples of all other classes.
        """
        # Personal models may have replaced the module's weights.
        self.prepare(params)
        rows = np.flatnonzero(self._data.dataset.y_test != trigger.target)
        fooled = 0
        with torch.no_grad():
            for batch in self._batch_slices(len(rows)):
                stamped = trigger.stamp(take_rows(self._data.dataset.x_test, rows[batch]))
                outputs = self._compute_outputs(map_tree(self._to_device, stamped), len(rows[batch]))
                fooled += int((outputs.argmax(dim=1) == trigger.target).sum())
        return fooled / max(1, len(rows))

    def prepare(self, params: Vector) -> nn.Module:
        """Return the module with these parameters, ready for inference.

        On a CPU the module shares the memory of `params`. Buffers that training changes, such as batch statistics, are
        estimated on training samples, because clients do not send them.
        """
        source = self._data.source
        if not self._data.streamed or source is None:
            return self._prepare_on(params, self._data.x_train)
        self._load_params(params)
        sizes = part_sizes(int(self._data.sizes.sum()), BATCH)
        state = self._state
        reestimate_over(self._module, lambda: source.parts(sizes), estimated=state.estimated, read=state.read)
        return self._set_eval_mode()

    def _prepare_on(self, params: Vector, x: Tree) -> nn.Module:
        self._load_params(params)
        reestimate_statistics(self._module, x, batch=BATCH, estimated=self._state.estimated, read=self._state.read)
        return self._set_eval_mode()

    def _load_params(self, params: Vector) -> None:
        load_parameters(self._module, params, writable=False)
        put_buffers(self._module, self._start)

    def _set_eval_mode(self) -> nn.Module:
        if self._state.changes:
            freeze_ranges(self._module)
        return self._module.eval()

    def _batch_slices(self, samples: int) -> list[slice]:
        """Return the rows of each batch. If the model needs several samples, batches have at least two rows."""
        if not samples:
            return []
        return LocalTraining(batch_size=BATCH, min_batch=self._state.min_eval_batch).spans(samples)

    def _compute_outputs(self, inputs: Tree, samples: int) -> Tensor:
        """Return the model's outputs for a batch.

        A single sample is doubled if the model needs several samples.
        """
        if samples < self._state.min_eval_batch:
            inputs = map_tree(lambda part: torch.cat([part, part]), inputs)
        buffers: Buffers = {}
        if self._state.restored:
            buffers = copy_buffers(self._module)
        with convert_custom_errors("model", self._module):
            result = self._objective.forward(self._module, inputs)
        outputs = self._objective.outputs(result)
        put_buffers(self._module, buffers)
        return outputs[:samples]

    def prepare_personal(self, params: Vector, kept: State, client: int, x: Tree, y: npt.NDArray[Any]) -> nn.Module:
        """Return the module with a client's personal model, ready for inference.

        Batch norm statistics are estimated on the client's training samples. A client without a personal model gets the
        global model.

        Args:
            params: The global model [d].
            kept: The personal values of the clients that have trained, as `ClientStates.copy_rows` returns them.
            client: The client.
            x: Its training inputs [n, ...].
            y: Its training targets [n, ...].
        """
        assert self._personal is not None
        own = self._personal.model(params, kept, client, x, y)
        if own is None:
            return self.prepare(params)
        return self._prepare_on(own, x)

    def _evaluate_personal(self, params: Vector, kept: State) -> dict[int, float]:
        """Return each personal model's main metric on its client's test samples, by client."""
        results = {}
        for client, (x, y) in self._data.personal.items():
            self.prepare_personal(params, kept, client, x, y)
            x_test, y_test = self._data.test_of(client)
            sums: dict[str, npt.NDArray[np.float64]] = {}
            with torch.no_grad():
                for rows in self._batch_slices(len(y_test)):
                    targets = self._to_device(y_test[rows])
                    outputs = self._compute_outputs(map_tree(self._to_device, take_rows(x_test, rows)), len(targets))
                    self._add_sums(sums, np.zeros(len(targets), np.int64), self._objective.sums(outputs, targets))
            if sums["count"][0] > 0:
                values = self._objective.of_clients({name: sums_of[:1] for name, sums_of in sums.items()})
                results[client] = float(values[0])
        return results

    def _client_results(
        self, sums: Mapping[str, npt.NDArray[np.float64]], personal: Mapping[int, float] | None
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of clients.csv: the loss and the metrics of each client on its own test samples.

        Args:
            sums: For each measured value, its sums over the test samples of each client, with the global model.
            personal: The main metric of each personal model, by client; None if there are none.
        """
        reported = self._data.reported
        if reported is None:
            return {}
        counts = np.diff(self._data.test_offsets)
        # `sums` has a row for each client with test samples.
        places = (np.cumsum(counts > 0) - 1)[reported]
        measured = np.flatnonzero((counts[reported] > 0) & (sums["count"][places] > 0))
        metrics = self._objective.metrics_by_client({name: values[places[measured]] for name, values in sums.items()})
        columns = {}
        for name in dict.fromkeys((*self._metric_spec.names, "loss")):
            columns[name] = np.full(len(reported), np.nan)
            columns[name][measured] = metrics[name]
        if personal is not None:
            results = [personal.get(client, np.nan) for client in reported.tolist()]
            columns[self._metric_spec.personal_main] = np.array(results)
        return {"client": reported, "test_samples": counts[reported], **columns}

    def _over_clients(self, name: str, values: npt.NDArray[np.float64]) -> dict[str, float]:
        """Return the mean, the standard deviation and the worst value of a metric over all clients."""
        if not values.size:
            return {f"{name}_{what}": float("nan") for what in ("mean", "std", "worst")}
        higher_is_better = self._metric_spec.better(f"{name}_worst") == "max"
        worst = values.min() if higher_is_better else values.max()
        # Huge or infinite perplexities are no error.
        with np.errstate(over="ignore", invalid="ignore"):
            middle, spread = values.mean(), values.std()
        return {f"{name}_mean": float(middle), f"{name}_std": float(spread), f"{name}_worst": float(worst)}

    def _to_device(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.copy()).to(self._device)

    def _add_sums(
        self, sums: dict[str, npt.NDArray[np.float64]], owners: npt.NDArray[np.int64], new: Mapping[str, Tensor]
    ) -> None:
        """Add each sample's measured values to the sums of its client.

        Args:
            sums: Sums [clients + 1, ...] by name, changed in place.
            owners: The client of each sample [b], as in `number_owners`.
            new: The measured values of the samples [b, ...] by name.
        """
        for name, values in new.items():
            measured = values.cpu().numpy()
            if name not in sums:
                sums[name] = np.zeros((self._clients + 1, *measured.shape[1:]))
            np.add.at(sums[name], owners, measured)

    def _summarise_sums(self, loss: float, sums: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, float]:
        """Return the metrics over all samples, and `client_mean`, `client_std` and `client_worst` of the main metric.

        Clients without test samples do not count.
        """
        whole = {name: values.sum(axis=0) for name, values in sums.items()}
        tested = np.flatnonzero(sums["count"][:-1] > 0)
        clients = self._objective.of_clients({name: values[tested] for name, values in sums.items()})
        return {
            **self._objective.metrics(whole),
            "loss": float(loss / whole["count"]),
            **self._over_clients("client", clients),
        }


def number_owners(data: Federated) -> tuple[npt.NDArray[np.int64], int]:
    """Return the client of each test sample [n], and the number N of clients with test samples.

    These clients have the numbers 0 to N - 1. A sample that belongs to no client has the number N.
    """
    counts = np.diff(data.test_offsets)
    counts = counts[counts > 0]
    clients = len(counts)
    owner_of_sample = np.full(len(data.dataset.y_test), clients, np.int64)
    owner_of_sample[data.test_order] = np.repeat(np.arange(clients), counts)
    return owner_of_sample, clients
