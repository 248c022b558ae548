"""The personal models of evaluations: models that clients keep, or fine-tuned global models."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedraa.client.kept_buffer import PERSONAL_LAYERS
from fedraa.client.local_algorithm import LocalAlgorithm, trained_or_global
from fedraa.client.local_training import LocalTraining
from fedraa.client.trainer import Trainer
from fedraa.components.calls import convert_errors
from fedraa.data import Federated
from fedraa.data.tree import Tree
from fedraa.messages import State, Task, Vector
from fedraa.submodels import Traced

Shards = Mapping[int, tuple[Tree, npt.NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class EvaluationData(Federated):
    """The data of an evaluation, and the training data of the clients that have personal models."""

    personal: Shards = field(default_factory=dict)
    streamed: bool = False
    """True if each evaluation reads all training samples from the data source, to estimate the model's buffers."""
    reported: npt.NDArray[np.int64] | None = None
    """The clients whose own results are reported, ascending. None reports no results of single clients."""

    @classmethod
    def of(
        cls,
        data: Federated,
        personal: Shards,
        *,
        streamed: bool = False,
        reported: npt.NDArray[np.int64] | None = None,
    ) -> "EvaluationData":
        own = {"personal": personal, "streamed": streamed, "reported": reported}
        return cls(**{item.name: getattr(data, item.name) for item in fields(data)} | own)


def choose_clients(data: Federated, count: int, rng: np.random.Generator, left_out: Collection[int] = ()) -> list[int]:
    """Return `count` random clients with test samples, sorted, or all if there are fewer.

    Args:
        data: The federated data.
        count: Number of clients.
        rng: Source of random numbers.
        left_out: Clients that are not chosen.
    """
    able = np.setdiff1d(np.flatnonzero(np.diff(data.test_offsets) > 0), list(left_out))
    return sorted(rng.choice(able, min(count, len(able)), replace=False).tolist())


class PersonalModels(Protocol):
    """The source of the personal models of an evaluation."""

    def model(self, params: Vector, kept: State, client: int, x: Tree, y: npt.NDArray[Any]) -> Vector | None:
        """Return a client's personal model [d], or None if the client has only the global model.

        Args:
            params: The global model [d].
            kept: The rows that `ClientStates.copy_rows` returned.
            client: The client.
            x: The client's training inputs [n, ...].
            y: The client's training targets [n, ...].
        """


@dataclass(frozen=True, eq=False)
class KeptModels:
    """The personal models that clients keep: a whole model, or personal layers in the global model.

    Attributes:
        algorithm: The algorithm of local training.
        layers: True for the coordinates [d] of personal layers; None without personal layers.
        min_samples: The smallest number of samples on which the statistics of batch norm can be estimated.
    """

    algorithm: LocalAlgorithm
    layers: npt.NDArray[np.bool_] | None
    min_samples: int = 1

    def model(self, params: Vector, kept: State, client: int, x: Tree, y: npt.NDArray[Any]) -> Vector | None:
        rows = np.flatnonzero(kept["clients"] == client)
        if not rows.size or len(y) < self.min_samples:
            return None
        values = {name: array[rows[0]] for name, array in kept.items() if name != "clients"}
        if self.layers is not None:
            own = params.copy()
            own[self.layers] = trained_or_global(values[PERSONAL_LAYERS.key], params[self.layers])
            params = own
        kept_values = {buffer.name: values[buffer.key] for buffer in self.algorithm.kept}
        with convert_errors("method.local.algorithm", self.algorithm):
            return self.algorithm.personal_model(kept_values, params)


class FineTuning:
    """Personal models: the global model after training on a client's data with a task's epochs.

    The learning rate is the initial one of the run, also if it changes during the run. The training uses no control
    variates, momentum or optimizer state of the server, no compression and no logit calibration. Every evaluation has
    the same random numbers. If the number of local steps depends on costs, the sending time counts as 0.
    """

    def __init__(self, traced: Traced, local: LocalTraining, **options: Any) -> None:
        plain = replace(
            local, control=False, full_gradient=False, squares=False, adversary=False, grad_mix=1.0, split=0
        )
        plain = replace(plain, compressor="none", error_feedback="none", logit_calibration=0.0, optimizer_state="reset")
        self._local = replace(plain, algorithm=LocalAlgorithm(), personal_layers=())
        self._widths = traced.widths(traced.full())
        self._trainer = Trainer(traced, self._local, resident_bytes=0, **options)

    def model(self, params: Vector, kept: State, client: int, x: Tree, y: npt.NDArray[Any]) -> Vector | None:
        """Return the parameters [d] after the client's training, or None if the client has too few samples."""
        if len(y) < self._local.min_batch:
            return None
        auto = self._local.auto
        steps = None
        if auto is not None:
            # The size 0 allows a single step: here no learning rate adapts to two halves of a task.
            steps = int(auto.minimum_steps(np.array(self._local.count_minibatches(len(y))), overlap=1.0, size=0.0))
        task = Task(0, client, 0, 0, 0, 0, self._widths, params, self._local.lr, 0.0, steps=steps)
        return self._trainer.train(task, x, y).params
