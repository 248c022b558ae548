"""PAdaMFed with variance reduction: normalised steps, control variates and momentum (Yan et al. 2025).

Round, with c_i, c, m = 0 and theta_prev = theta at first; eta = lr, K local steps, S clients per round, T rounds:
    beta = gamma = min(1, (S K)^(1/3) / T^(2/3));  b = beta c + (1 - beta) m
    Client i: K steps from w = theta:
        q = g(w) + b - beta c_i - (1 - beta) g(theta_prev)      # both gradients on the same minibatch
        w <- w - eta q / ||q||
        c_i' = mean of g(w) over the steps
    Server:
        theta_prev, theta <- theta, theta - gamma * mean of (theta - w_i) / (eta K)
        m <- beta (mean of (c_i' - c_i) + c) + (1 - beta) m
        c <- c + 1/N * sum of (c_i' - c_i)

Source: the abstract (ICLR 2025), and the code of one other project, which has these formulas with variance reduction.
In this code eta = 1 / (K T), which can be set as `lr`. T, S and K must be known before the run: T is the run's limit of
rounds, S follows from the participation, and K is the mean number of local steps. beta stays the same if the run is
extended later. A client receives theta, b and theta_prev (3 d values), and sends w and c_i' (2 d values).

Read next: client/local_algorithm.py (the interface of local training), server/round_state.py (the state of rounds).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch

from fedraa.aggregation.aggregator import ClientDelta
from fedraa.client.gradient_transforms import EPSILON, AddVector, gradient_norm
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun, refuse_other_steps
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.errors import InputError
from fedraa.messages import Extra, ExtraBuffers, LazyBuffer, Mask, Update, Vector
from fedraa.numbers import Count
from fedraa.server.round_state import RoundState, RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Assignment
from fedraa.vectors.chunked import copy_coordinates
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.index_ranges import where_of

_PLAIN_STEPS = "a local step has the length lr along the corrected gradient"
_CLIPPING = "the client would send the difference of a clipped sum and its correction instead of its mean gradient"
_GRADIENTS = "the server adds up the gradients of clients as they are"
_GAMMA = "the server's step has the length gamma, which follows from the number of rounds"


@dataclass(frozen=True)
class NormalisedSteps(LocalAlgorithm):
    """Local training with steps of the length lr along the corrected gradient (PAdaMFed)."""

    needs_whole_gradient: ClassVar[bool] = True
    passes: ClassVar[float] = 1
    replies: ClassVar[tuple[str, ...]] = ("gradient",)
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({**refuse_other_steps(_PLAIN_STEPS), "clip": _CLIPPING})

    def train(self, run: LocalRun) -> None:
        shift = torch.zeros_like(run.weights)
        # `shift` changes from step to step. The term adds its current values to every gradient.
        run.add_transform(AddVector(shift))
        total = torch.zeros_like(run.weights)
        beta = float(run.sent["beta"])
        steps = 0
        for inputs, labels in run.minibatches():
            current = run.weights.clone()
            run.weights.copy_(run.sent["previous"])
            shift.zero_()
            _, earlier = run.gradient(inputs, labels)
            shift.copy_(run.sent["shift"]).sub_(earlier, alpha=1 - beta)
            run.weights.copy_(current)
            loss, gradient = run.gradient(inputs, labels)
            run.record_loss(loss)
            total.add_(gradient).sub_(shift)
            run.weights.sub_(gradient / (gradient_norm(gradient) + EPSILON), alpha=run.lr)
            steps += 1
        run.reply["gradient"] = total / steps


@dataclass
class MomentumAndControls(RoundState):
    """The server's momentum and the clients' control variates (c, m, c_i and theta_prev) of PAdaMFed.

    The server's step is multiplied by gamma / (eta K).

    Attributes:
        rounds: T, the number of rounds; None for the run's limit of rounds.
        cohort: S, the number of clients in a round; None for the number from `participation`.
    """

    rounds: Count | None = None
    cohort: Count | None = None

    keeps: ClassVar[str] = "c, m, theta_prev [d], c_i [N, d]"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "compress": _GRADIENTS,
            "aggregator": _GRADIENTS,
            "server_optimizer": _GAMMA,
            "server_lr": _GAMMA,
        }
    )
    reads_deltas: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=2, up=1)
    asks: ClassVar[tuple[str, ...]] = ("gradient",)
    state_fields: ClassVar[tuple[str, ...]] = (
        "_beta",
        "_control",
        "_momentum",
        "_previous",
        "_client",
        "_change",
        "_reports",
    )

    @property
    def uses_rounds(self) -> bool:
        return self.rounds is None

    def start(self, run: RoundStateContext) -> None:
        rounds = _require_known(self.rounds or run.rounds, "rounds", "the run has no limit of rounds")
        cohort = _require_known(self.cohort or run.cohort, "cohort", "the participation has no fixed number of clients")
        self._clients = run.clients
        self._beta = min(1.0, float((cohort * run.steps) ** (1 / 3) / rounds ** (2 / 3)))
        self._control = np.zeros(run.size, np.float32)
        self._momentum = np.zeros(run.size, np.float32)
        self._previous = run.params.copy()
        self._client = ClientRows(run.size, run.clients, lambda: np.zeros(run.size, np.float32))
        self._change = np.zeros(run.size, np.float32)
        self._reports = 0

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        where = where_of(assignment.submodel)
        return {
            "shift": LazyBuffer(lambda: copy_coordinates(self._make_shift(client), where)),
            "previous": LazyBuffer(lambda: copy_coordinates(self._previous, where)),
            "beta": np.array(self._beta, np.float32),
        }

    def _make_shift(self, client: int) -> Vector:
        """Return b - beta c_i [d] of the pseudo-code above. It is constant while the client's task is in flight."""
        control = self._control
        if client in self._client:
            control = control - self._client.peek_row(client)
        return np.asarray(self._beta * control + (1 - self._beta) * self._momentum, np.float32)

    def receive(self, contribution: ClientDelta, assignment: Assignment, update: Update) -> None:
        row = self._client[contribution.client]
        gradient = assignment.trained(update.extras["gradient"])
        self._change[assignment.where] += gradient - row[assignment.where]
        row[assignment.where] = gradient
        self._reports += 1

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        beta = np.float32(self._beta)
        mean = self._change / np.float32(max(1, self._reports)) + self._control
        self._momentum = beta * mean + (1 - beta) * self._momentum
        self._control += self._change / np.float32(self._clients)
        self._change[:] = 0
        self._reports = 0
        # The model at the end of the last round is not the start of this one if a sampler has pruned it.
        step = np.where(moved, delta, np.float32(0))
        self._previous = params - step
        params[:] = self._previous + np.float32(self._beta / scale) * step

    def memory(self, size: int, clients: int) -> int:
        return 4 * size * (clients + 4)


def _require_known(value: float | None, name: str, problem: str) -> float:
    if value is None:
        hint = f"give --override update.auxiliary.{name}=NUMBER"
        raise InputError(f"update.auxiliary.{name}", f"beta and gamma depend on it, and {problem}", hint=hint)
    return value


register(
    Method(
        name="padamfed",
        paper="Yan et al. 2025",
        note="the variance-reduced variant, by the code of one other project",
        formula="`theta ← theta + gamma · mean delta / (lr · steps)`; steps of length lr along a corrected gradient.",
        when="Unequal data and partial participation, and the number of rounds is known before the run.",
        local=replace(PLAIN_SGD, algorithm=NormalisedSteps()),
        update=Mean(auxiliary=MomentumAndControls()),
        paper_settings=PaperSettings(
            source="code of another project",
            values={"momentum": 0.0},
            unstated="lr = 1 / (K T) for K local steps and T rounds",
        ),
    )
)
