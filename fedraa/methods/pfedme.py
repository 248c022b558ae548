"""pFedMe: personal models with a Moreau envelope (Dinh et al. 2020, Algorithm 1).

Client n receives theta; w = theta, p = w. For each minibatch:
    `inner_steps` times:  p <- p - personal_lr * (grad f_n(p) + lambda * (p - w))
    w <- w - lr * lambda * (w - p)
    send w; keep p, the personal model
Server:
    theta <- (1 - beta) * theta + beta * mean of the clients' w       # beta is server_lr

All inner steps of a minibatch use this minibatch, and p continues from the last inner step of the minibatch before.

Read next: client/local_algorithm.py (the interface of local training), client/task_run.py (its steps),
server/client_states.py (the personal models).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun, refuse_other_steps, trained_or_global
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Vector
from fedraa.numbers import Count, Positive
from fedraa.server.round_update import Mean

_PLAIN_STEPS = "the personal model takes steps of plain SGD, and the shared one moves towards it"


@dataclass(frozen=True)
class MoreauEnvelope(LocalAlgorithm):
    """Local training of a personal model near the shared weights, which then move towards it (pFedMe).

    Attributes:
        pull: Weight lambda of the squared distance between the personal model and the shared weights.
        personal_lr: Learning rate of the personal model.
        inner_steps: Steps of the personal model for each minibatch.
    """

    pull: Positive = 15.0
    personal_lr: Positive = 0.05
    inner_steps: Count = 5

    has_personal_model: ClassVar[bool] = True
    needs_whole_gradient: ClassVar[bool] = True
    refuses: ClassVar[Mapping[str, str]] = refuse_other_steps(_PLAIN_STEPS)

    @property
    def kept(self) -> tuple[KeptBuffer, ...]:
        return (KeptBuffer("personal_model", "received"),)

    @property
    def passes(self) -> float:
        return self.inner_steps - 1

    def train(self, run: LocalRun) -> None:
        w = run.weights.clone()
        p = w.clone()
        for inputs, labels in run.minibatches():
            # `run.gradient` takes the gradient at `run.weights`. Between two minibatches, `run.weights` have the values
            # of w, from which an adaptive learning rate follows.
            run.weights.copy_(p)
            for step in range(self.inner_steps):
                loss, gradient = run.gradient(inputs, labels)
                if step == 0:
                    run.record_loss(loss)
                run.weights.sub_(gradient + self.pull * (run.weights - w), alpha=self.personal_lr)
            p.copy_(run.weights)
            w.sub_(w - p, alpha=run.lr * self.pull)
            run.weights.copy_(w)
        run.state["personal_model"].copy_(p)

    def personal_model(self, kept: Mapping[str, Vector], params: Vector) -> Vector:
        return trained_or_global(kept["personal_model"], params)


register(
    Method(
        name="pfedme",
        paper="Dinh et al. 2020",
        formula=(
            "Clients minimise f_n(p) + (lambda / 2) |p − w|² in p, and w follows p; "
            "`theta ← theta + server_lr · mean delta`."
        ),
        when="Every client needs a good model for its own samples, and can spend several passes on each minibatch.",
        local=replace(PLAIN_SGD, algorithm=MoreauEnvelope()),
        update=Mean(),
        paper_settings=PaperSettings(
            source="authors' readme, MNIST",
            values={
                "lr": 0.005,
                "momentum": 0.0,
                "local_steps": 20,
                "batch_size": 20,
                "server_lr": 1.0,
                "local.algorithm.personal_lr": 0.09,
                "local.algorithm.pull": 15.0,
                "local.algorithm.inner_steps": 5,
            },
        ),
    )
)
