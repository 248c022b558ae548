"""FedRep: the head is personal and trained first, then the shared body (Collins et al. 2021, Algorithm 1).

Client n keeps its head p_n and receives the body s:
    `head_epochs` epochs of SGD on f_n(s, p) in p            # s is fixed
    then the local epochs (or steps) of SGD on f_n(s, p) in s     # p is fixed
    send s; keep p
Server:
    s <- mean of the clients' s, weighted by samples

A learning-rate schedule over local steps has the length of the second part, and starts again there.

Read next: methods/fedper.py (both parts together), client/local_algorithm.py (the interface of local training),
client/task_run.py (its steps).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun
from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.numbers import Count
from fedraa.server.round_update import Mean
from fedraa.submodels.personal_layers import LAST


@dataclass(frozen=True)
class HeadThenBody(LocalAlgorithm):
    """Local training of the personal layers with a new optimizer, then of the shared layers (FedRep).

    Attributes:
        head_epochs: Number of epochs on the personal layers.
    """

    head_epochs: Count = 10

    needs: ClassVar[tuple[str, ...]] = ("personal_layers",)

    @property
    def epochs(self) -> int:
        return self.head_epochs

    def train(self, run: LocalRun) -> None:
        with run.separate_steps():
            for inputs, labels in run.minibatches("head", self.head_epochs):
                run.step(inputs, labels, only=run.personal)
        for inputs, labels in run.minibatches():
            run.step(inputs, labels, only=~run.personal)


register(
    Method(
        name="fedrep",
        paper="Collins et al. 2021",
        formula="As fedper; a client first trains its head with the body fixed, then the body with the head fixed.",
        when="As fedper, if tasks may be longer: the head fits the client before the body moves.",
        local=LocalTraining(personal_layers=(LAST,), algorithm=HeadThenBody()),
        update=Mean(weights="samples"),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10, without its weight decay of 1e-4, which spares biases",
            values={"lr": 0.01, "momentum": 0.5, "local_epochs": 1, "batch_size": 10, "weights": "samples"},
            client_fraction=0.1,
        ),
    )
)
