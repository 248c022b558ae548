"""APFL: a personal model that mixes a local and the global model (Deng et al. 2020, Algorithm 1).

Client n receives theta and keeps a local model v_n and a weight a_n. From w = theta, each step on one minibatch:
    m <- a * v + (1 - a) * w
    a <- clip(a - lr * <grad f_n(m), v - w>, 0, 1)       # if adaptive; v and w have the values before the step
    v <- v - lr * a * grad f_n(m)                        # kept; a has the value before the step
    w <- w - lr * grad f_n(w)                            # sent
Server:
    theta <- mean of the clients' w, weighted by samples
The personal model is a * v + (1 - a) * theta, a mixture of weights.

With submodels, a task changes v only on the coordinates that it trains. The scalar product is over these coordinates.

Read next: client/local_algorithm.py (the interface of local training), client/task_run.py (its steps),
server/client_states.py (the values that clients keep).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun, refuse_other_steps, trained_or_global
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Vector
from fedraa.numbers import Share
from fedraa.server.round_update import Mean

_PLAIN_STEPS = "the local model and its weight take steps of plain SGD"


@dataclass(frozen=True)
class MixedModel(LocalAlgorithm):
    """Local training of the shared weights, and of a local model that is mixed with them (APFL).

    Attributes:
        mixing: Initial weight a of the local model.
        adaptive: True to learn the weight a of each client, False to keep it constant.
    """

    mixing: Share = 0.5
    adaptive: bool = True

    has_personal_model: ClassVar[bool] = True
    needs_whole_gradient: ClassVar[bool] = True
    passes: ClassVar[float] = 1
    refuses: ClassVar[Mapping[str, str]] = refuse_other_steps(_PLAIN_STEPS)

    @property
    def kept(self) -> tuple[KeptBuffer, ...]:
        return KeptBuffer("local_model", "model"), KeptBuffer("mixing", self.mixing, size=1)

    def train(self, run: LocalRun) -> None:
        v = run.state["local_model"]
        a = float(run.state["mixing"])
        for inputs, labels in run.minibatches():
            w = run.weights.clone()
            difference = v - w
            run.weights.add_(difference, alpha=a)
            _, gradient = run.gradient(inputs, labels)
            v.sub_(gradient, alpha=run.lr * a)
            if self.adaptive:
                a = min(1.0, max(0.0, a - run.lr * float(gradient @ difference)))
            run.weights.copy_(w)
            run.step(inputs, labels)
        run.state["mixing"].fill_(a)

    def personal_model(self, kept: Mapping[str, Vector], params: Vector) -> Vector:
        a = np.float32(kept["mixing"][0])
        return a * trained_or_global(kept["local_model"], params) + (1 - a) * params


register(
    Method(
        name="apfl",
        paper="Deng et al. 2020",
        formula="As fedavg; each client mixes theta with a local model, a v + (1 − a) theta, and learns v and a.",
        when="Clients differ by unknown amounts: each learns how much of the global model to use.",
        local=replace(PLAIN_SGD, algorithm=MixedModel()),
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="release of FedRep, which has a constant mixing weight",
            values={"momentum": 0.0, "local.algorithm.mixing": 0.75, "local.algorithm.adaptive": False},
            unstated="learning rate, epochs, batch size",
        ),
    )
)
