"""FedDyn: a linear and a proximal term align the clients' losses with the global one (Acar et al. 2021, Algorithm 1).

Client n receives theta and keeps lambda_n, 0 at first; alpha is prox_mu:
    w <- local steps on f_n(w) - <lambda_n, w> + alpha/2 * ||w - theta||^2, from theta
    lambda_n <- lambda_n - alpha * (w - theta)
Server, with N clients; P are the clients that report, and H = h / alpha is 0 at first:
    H <- H - 1/N * sum over P of (w - theta)
    theta <- theta + mean over P of (w - theta) - H

Without rounds, P are the updates in a full buffer, and w - theta is the difference from the model that the client
received. lambda_n, H and the mean are per coordinate, so that only coordinates that clients have trained move. The
authors' code adds alpha/2 * ||w||^2 as weight decay of the optimizer; here it is a term of the gradient.

Read next: client/local_algorithm.py (the interface of local training), server/round_state.py (state of rounds),
methods/fedbuff.py (a rule with a buffer).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta
from fedraa.client.gradient_transforms import AddVector
from fedraa.client.kept_buffer import KeptBuffer
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun
from fedraa.components.field_checks import check_component_fields
from fedraa.composition.method import NO_PAPER, PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.errors import InputError
from fedraa.messages import Index, Mask, Update, Vector
from fedraa.methods.fedbuff import Buffered
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate
from fedraa.server.round_state import RoundState, RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.server.schedule import AsyncSchedule
from fedraa.submodels.assignment import Assignment
from fedraa.vectors.chunked import add_scaled, map_chunks

_WHOLE_STEP = "the new model is the mean of the clients' models minus H, without a server step"


@dataclass(frozen=True)
class DynamicRegularizer(LocalAlgorithm):
    """The local training of FedDyn, with a linear term in the loss.

    Each client keeps lambda_n, the factor of its linear term. After each task, lambda_n decreases by prox_mu times the
    client's delta. lambda_n is always 0 in personal layers.
    """

    needs: ClassVar[tuple[str, ...]] = ("prox_mu",)
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"compress": "lambda_n would follow the delta before compression, and the server's sum the delta after it"}
    )

    @property
    def kept(self) -> tuple[KeptBuffer, ...]:
        return (KeptBuffer("drift"),)

    def train(self, run: LocalRun) -> None:
        drift = run.state["drift"]
        run.add_transform(AddVector(-drift))
        super().train(run)
        # The server has no model of personal layers with which the client's loss should be aligned.
        drift.sub_((run.weights - run.received).masked_fill(run.personal, 0.0), alpha=run.prox_mu)


@dataclass
class DriftSum(RoundState):
    """H [d] of FedDyn: the negative sum of all deltas, divided by the number of clients."""

    keeps: ClassVar[str] = "H [d]"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "aggregator": "H sums all deltas, and a robust aggregator would not bound an attacker's delta in H",
            "server_optimizer": _WHOLE_STEP,
            "server_lr": _WHOLE_STEP,
        }
    )
    reads_deltas: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_drift", "_change")

    def start(self, run: RoundStateContext) -> None:
        self._clients = run.clients
        self._drift = np.zeros(run.size, np.float32)
        self._change = np.zeros(run.size, np.float32)

    def receive(self, contribution: ClientDelta, assignment: Assignment, update: Update) -> None:
        def add_piece(place: Index | slice, delta: Vector) -> None:
            self._change[place] += delta

        contribution.change.join(add_piece)

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        clients = np.float32(self._clients)

        def step_piece(piece: slice) -> None:
            self._drift[piece] -= self._change[piece] / clients
            self._change[piece] = 0
            np.subtract(params[piece], self._drift[piece], out=params[piece], where=moved[piece])

        map_chunks(len(params), step_piece)

    def memory(self, size: int, clients: int) -> int:
        return 8 * size


@ASYNC_RULE.register("feddyn")
@dataclass
class FedDynRule(Buffered):
    """FedDyn (Acar et al. 2021) over a buffer: theta += mean of the deltas - H, H -= sum of the deltas / N.

    The mean of a coordinate is over the updates that trained it. A buffer of one update is refused, because every
    update would then replace the global model by the model of one client.
    """

    keeps: ClassVar[str] = "H [d], buffer [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_drift", "_total", "_updates")

    def __post_init__(self) -> None:
        check_component_fields(self, "async_rule")
        if self.size < 2:
            problem = "each update would replace the model"
            raise InputError("buffer_size", problem, got=self.size, expected="2 or more")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        size = len(model.params)
        self._drift = np.zeros(size, np.float32)
        self._total = np.zeros(size, np.float32)
        # For each coordinate: the number of updates in the buffer that contain the coordinate.
        self._updates = np.zeros(size, np.float32)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        add_scaled(self._total, update.coordinates, 1.0, update.new, update.sent)
        self._updates[update.where] += 1
        full = self._count_update()
        if full:
            self._apply_buffer(model)
        return ApplyResult(1 / self.size, full)

    def _apply_buffer(self, model: AsyncModel) -> None:
        clients = np.float32(model.clients)

        def step_piece(piece: slice) -> None:
            trained = self._updates[piece] > 0
            self._drift[piece] -= self._total[piece] / clients
            step = self._total[piece] / np.maximum(self._updates[piece], 1) - self._drift[piece]
            np.add(model.params[piece], step, out=model.params[piece], where=trained)

        map_chunks(len(model.params), step_piece)
        self._total.fill(0)
        self._updates.fill(0)

    def memory(self, size: int, clients: int) -> int:
        return 12 * size


DYNAMIC_TRAINING = replace(PLAIN_SGD, prox_mu=0.1, algorithm=DynamicRegularizer())

register(
    Method(
        name="feddyn",
        paper="Acar et al. 2021",
        formula=(
            "Clients add −⟨λ_i, w⟩ + (prox_mu / 2) |w − theta|² to their loss; `H ← H − Σ delta / N`, "
            "`theta ← theta + mean delta − H`."
        ),
        when="Unequal data in rounds: it corrects the drift of clients, as scaffold does, with the traffic of fedavg.",
        local=DYNAMIC_TRAINING,
        update=Mean(auxiliary=DriftSum()),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10",
            values={
                "lr": 0.1,
                "momentum": 0.0,
                "prox_mu": 0.01,
                "local_epochs": 5,
                "batch_size": 50,
                "weight_decay": 1e-3,
                "clip": 10.0,
                "participation": "all",
            },
        ),
    )
)

register(
    Method(
        name="feddyn-async",
        variant_of="feddyn",
        paper="Acar et al. 2021",
        note="asynchronous variant by fedraa: the updates of a full buffer take the place of the clients of a round",
        formula="As feddyn, with the updates of a full buffer as its round.",
        when="As feddyn, if some devices are slow.",
        local=DYNAMIC_TRAINING,
        update=FedDynRule(),
        schedule=AsyncSchedule(),
        paper_settings=NO_PAPER,
    )
)
