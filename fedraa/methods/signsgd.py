"""signSGD with majority vote: one bit per parameter in each message (Bernstein et al. 2018, Algorithm 3).

Round:
    Client n: local SGD from theta to w_n; sends the sign of every entry of w_n - theta, where 0 counts as +1
    theta <- theta + server_lr * sign(sum over the clients of their signs)

In the paper a client sends the sign of the gradient of one minibatch. A parameter with a tie does not move. With
submodels, only the clients that trained a parameter vote on it.

Read next: client/compression.py (the signs), aggregation/coverage_mean.py (the mean that the vote replaces),
methods/fedavg.py (the round).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import Aggregator, ClientDelta, RoundTotals
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Index, Mask, Vector
from fedraa.server.optimizers import Sgd
from fedraa.server.round_update import Mean
from fedraa.vectors.reusable_buffer import ReusableBuffer


@AGGREGATOR.register("majority")
@dataclass
class MajorityVote(Aggregator):
    """The majority vote of signSGD: for each coordinate, the sign of the sum of the clients' signs, 0 for a tie.

    A client votes only on the coordinates that it trained. Each vote counts the same, whatever the number of samples.
    """

    accepts_signs: ClassVar[bool] = True
    weighs: ClassVar[bool] = False
    state_fields: ClassVar[tuple[str, ...]] = ("_votes",)

    def start(self, size: int, clients: int) -> None:
        self._room = ReusableBuffer(size, np.float32)
        self._votes: Vector | None = None

    def add(self, contribution: ClientDelta) -> None:
        if self._votes is None:
            self._votes = self._room.filled(0)
        votes = self._votes

        def add_piece(place: Index | slice, delta: Vector) -> None:
            votes[place] += np.sign(delta)

        contribution.change.join(add_piece)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        votes = self._votes
        assert votes is not None, "a round without reports is not finished"
        self._votes = None
        return np.sign(votes, out=votes), totals.trained

    def memory(self, size: int, clients: int) -> int:
        return 4 * size


register(
    Method(
        name="signsgd",
        paper="Bernstein et al. 2018, Algorithm 3",
        note="any number of local steps (the paper: one)",
        formula="`theta ← theta + server_lr · sign(Σ sign(w_i − theta))`: the clients vote on each parameter.",
        when="Slow uplinks: a client sends one bit per parameter, a 32nd of the usual bytes.",
        local=replace(PLAIN_SGD, compressor="sign"),
        update=Mean(aggregator=MajorityVote(), optimizer=Sgd(server_lr=1e-3)),
        paper_settings=PaperSettings(
            source="one local step, as in Algorithm 3",
            values={"local_steps": 1, "momentum": 0.0, "weights": "uniform"},
            unstated="the learning rate for other data",
        ),
    )
)
