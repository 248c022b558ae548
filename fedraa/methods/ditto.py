"""Ditto: each client trains a personal model that is pulled towards the global one (Li et al. 2021, Algorithm 1).

Client n receives theta and keeps its personal model v_n, which starts at the initial model:
    local SGD from theta to w                                        # sent
    the same number of steps: v <- v - lr * (grad f_n(v) + lambda * (v - theta))     # kept
Server:
    theta <- mean of the clients' w, weighted by samples

Both models use the client's local optimizer, each with its own state and its own order of minibatches. If
`local_optimizer_state` is keep, only the state of the shared model continues in the next task. theta is the model that
the client received, even if it is stale. With submodels, a task trains v only on the submodel's coordinates.

Read next: client/local_algorithm.py (the interface of local training), client/task_run.py (its steps),
server/client_states.py (the personal models).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun, trained_or_global
from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Vector
from fedraa.numbers import NotNegative
from fedraa.server.round_update import Mean


@dataclass(frozen=True)
class PulledModel(LocalAlgorithm):
    """Local training of the shared weights, then equally many steps on a personal model with a proximal term (Ditto).

    Attributes:
        pull: Weight lambda of the proximal term.
    """

    pull: NotNegative = 1.0

    has_personal_model: ClassVar[bool] = True
    passes: ClassVar[float] = 1

    @property
    def kept(self) -> tuple[KeptBuffer, ...]:
        return (KeptBuffer("personal_model", "model"),)

    def train(self, run: LocalRun) -> None:
        super().train(run)
        with run.separate_steps(run.state["personal_model"], self.pull):
            for inputs, labels in run.minibatches("personal"):
                run.step(inputs, labels)

    def personal_model(self, kept: Mapping[str, Vector], params: Vector) -> Vector:
        return trained_or_global(kept["personal_model"], params)


register(
    Method(
        name="ditto",
        paper="Li, Hu et al. 2021",
        formula="As fedavg; each client also trains a personal model v on f_n(v) + (lambda / 2) |v − theta|².",
        when="Every client needs a good model for its own samples, and some clients may send bad updates.",
        local=LocalTraining(algorithm=PulledModel()),
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="authors' code, Fashion-MNIST",
            values={"lr": 0.05, "momentum": 0.0, "local_steps": 2, "batch_size": 16},
            unstated="the choice of lambda from 0.1, 1 and 2",
        ),
    )
)
