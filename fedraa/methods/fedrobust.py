"""FedRobust: clients train against an affine perturbation of their inputs (Reisizadeh et al. 2020).

Client n: minimises over w and maximises over (Lambda_n, delta_n) the loss on Lambda_n * x + delta_n;
    Lambda_n (here diagonal) and delta_n stay with the client from round to round
Server:   theta <- mean of the cohort's models

Read next: client/input_adversary.py (the perturbation), server/round_state.py (state beside the model).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Extra, Update
from fedraa.server.round_state import RoundState, RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Assignment
from fedraa.vectors.client_rows import ClientRows


@dataclass
class InputAdversaries(RoundState):
    """FedRobust: an affine input perturbation (L, d) of each client, which never leaves the client."""

    keeps: ClassVar[str] = "Lambda_n, delta_n [N, 2 inputs]"
    asks: ClassVar[tuple[str, ...]] = ("adversary",)
    state_fields: ClassVar[tuple[str, ...]] = ("_client",)

    def start(self, run: RoundStateContext) -> None:
        identity = np.concatenate([np.ones(run.inputs, np.float32), np.zeros(run.inputs, np.float32)])
        self._client = ClientRows(2 * run.inputs, run.clients, lambda: identity)

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        return {"adversary": self._client.peek_row(client).copy()}

    def receive(self, contribution: ClientDelta, assignment: Assignment, update: Update) -> None:
        self._client[contribution.client][:] = update.extras["adversary"]

    def memory(self, size: int, clients: int, inputs: int) -> int:
        return 8 * inputs * clients


register(
    Method(
        name="fedrobust",
        paper="Reisizadeh et al. 2020",
        note="diagonal affine perturbation",
        formula=(
            "Clients descend on the weights and ascend on an affine change of their inputs, x → L x + d, which stays "
            "with them; then the mean."
        ),
        when="Inputs differ between clients by their devices: light, gain, offset. Not for tokens.",
        local=replace(PLAIN_SGD, adversary=True),
        update=Mean(auxiliary=InputAdversaries()),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10", values={"lr": 1e-3, "momentum": 0.0, "batch_size": 50}
        ),
    )
)
