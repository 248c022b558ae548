"""Personalised evaluation: a client's own figure once it has trained the model on its own data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.client.local_training import Solver
from fedraa.client.trainer import Trainer
from fedraa.data import Federated
from fedraa.data.tree import Tree
from fedraa.messages import Task, Vector
from fedraa.submodels import Traced

Shards = Mapping[int, tuple[Tree, npt.NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class EvaluationData(Federated):
    """What an evaluation needs, with the training shards of the clients that are evaluated by themselves."""

    personal: Shards = field(default_factory=dict)
    streamed: bool = False
    """True if statistics are estimated on all training samples, which every evaluation reads from the source."""
    reported: npt.NDArray[np.int64] | None = None
    """Clients whose results are reported, ascending; None if no results per client are reported."""

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


def chosen(data: Federated, count: int, rng: np.random.Generator) -> list[int]:
    """So many of the clients that have test samples, or all of them; each as likely as any other."""
    able = np.flatnonzero(np.diff(data.test_offsets) > 0)
    return sorted(rng.choice(able, min(count, len(able)), replace=False).tolist())


class Personal:
    """Trains the full model on a client's shard as a task would be: the solver's epochs, batches and learning rate.

    Of steps that follow from costs there are as many as where sending takes no time.

    What a server sends besides the model (control variates, momentum, optimizer state) is left out, nothing is
    compressed, and logits are not calibrated, as it is the client's own labels that the model is for. The order of
    minibatches, and what transforms draw for them, is the same in every evaluation.
    """

    def __init__(self, traced: Traced, solver: Solver, **given: Any) -> None:
        plain = replace(solver, control=False, full_gradient=False, squares=False, adversary=False, fresh=1.0, split=0)
        self._solver = replace(plain, compress="none", calibrate=0.0, optimizer_state="reset")
        self._widths = traced.widths(traced.full())
        self._trainer = Trainer(traced, self._solver, resident_bytes=0, **given)

    def can_train(self, samples: int) -> bool:
        """Return True if a shard of this size is enough for the model to be trained on."""
        return samples >= self._solver.min_batch

    def train(self, params: Vector, client: int, x: Tree, y: npt.NDArray[Any]) -> Vector:
        """The parameters [d] after the client's local training."""
        lr, auto = self._solver.lr, self._solver.auto
        steps = int(auto.shortest(np.array(self._solver.minibatches(len(y))))) if auto else None
        task = Task(0, client, 0, 0, 0, 0, self._widths, params, lr, 0.0, steps=steps)
        return self._trainer.train(task, x, y).params
