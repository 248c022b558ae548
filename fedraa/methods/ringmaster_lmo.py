"""Ringmaster LMO: ignore stale updates, and average the accepted deltas in a momentum (Sadiev et al. 2026).

After each accepted delta, the server orthogonalises Nesterov's momentum (this is lmo) and steps along the result.

When delta arrives with staleness t, after k accepted updates:
    if t < R:
        m <- beta * m + (1 - beta) * delta
        theta <- theta + server_lr * lmo(beta * m + (1 - beta) * delta)
    else:      ignore the update; the client starts again from the current theta
With `agnostic`: R = floor(sqrt(max(1, k))), beta = 1 - 1 / sqrt(max(1, k)), and server_lr / (k + 1)^0.75 replaces
    server_lr

Source: transcriptions of the paper, and an author's code. That code also ends a client's running task when the task has
become too stale. This module does not: the client finishes the task, and the server ignores its update.

Read next: server/muon.py (lmo), methods/ringmaster.py (the same without momentum), methods/fedbuff.py (the base class).
"""

from dataclasses import dataclass, field
from math import isqrt, sqrt
from typing import Any, ClassVar

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.errors import InputError
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.numbers import Count
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate
from fedraa.server.muon import Muon
from fedraa.server.schedule import AsyncSchedule


@ASYNC_RULE.register("ringmaster-lmo")
@dataclass
class RingmasterLMO(FedBuffRule):
    """Ringmaster LMO (Sadiev et al. 2026): a step of fixed length along the momentum, if staleness < R.

    Updates of staleness R or more are ignored: their weight is 0, and they make no new version. Running tasks are not
    stopped, unlike in the authors' code. With the optimizer `normalized-momentum` the step is m / |m|.

    If `agnostic` is True, the number k of steps so far determines R, the momentum and the length of the step. The first
    steps then accept only fresh updates.

    Attributes:
        size: Number of client updates per step.
        staleness: The weight of an accepted delta, as a function of its staleness.
        optimizer: The server optimizer that takes the step.
        delay_limit: R: an update of this staleness or more is ignored; None for the number of clients.
        agnostic: True for the parameter-agnostic variant.
    """

    size: Count = 1
    staleness: Any = "constant"
    optimizer: Any = field(default_factory=Muon)
    delay_limit: Count | None = None
    agnostic: bool = False

    # Epsilon is computed for buffers of consecutive updates. This rule ignores some updates between those of a buffer.
    adds_noise: ClassVar[bool] = False
    state_fields: ClassVar[tuple[str, ...]] = ("_steps",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer is None:
            raise InputError("optimizer", got=None, expected="a server optimizer, such as muon")
        if self.agnostic and not hasattr(self.optimizer, "beta"):
            problem = f"agnostic sets the decay beta of the momentum, which {type(self.optimizer).__name__} lacks"
            raise InputError("optimizer", problem, hint="give muon or normalized-momentum")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._steps = 0

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        assert self._stepping is not None
        limit = self.delay_limit or model.clients
        if self.agnostic:
            limit, self._stepping.beta, factor = find_agnostic_values(self._steps)
            self._stepping.server_lr = factor * self.optimizer.server_lr
        if update.staleness >= limit:
            return ApplyResult(0.0, False)
        result = super().apply_update(update, model)
        self._steps += result.new_version
        return result


def find_agnostic_values(steps: int) -> tuple[int, float, float]:
    """Return the values of the parameter-agnostic variant after `steps` steps: R, beta and the factor of server_lr."""
    accepted = max(1, steps)
    return isqrt(accepted), 1 - 1 / sqrt(accepted), (steps + 1) ** -0.75


register(
    Method(
        name="ringmaster-lmo",
        paper="Sadiev et al. 2026",
        note="tasks are not stopped; any number of local steps (the paper: one)",
        formula=(
            "`m ← beta · m + (1 − beta) · delta; theta ← theta + server_lr · lmo(beta · m + (1 − beta) · delta)` "
            "if the staleness is below delay_limit, else no change."
        ),
        when="Few labels per client and tasks of one or two steps; or large matrices and a few very slow devices.",
        local=PLAIN_SGD,
        update=RingmasterLMO(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="an author's code, 8 workers",
            values={
                "local_steps": 1,
                "momentum": 0.0,
                "update.delay_limit": 2,
                "server_optimizer": "muon(server_lr=1.0, beta=0.95, nesterov=True, factors='per-step')",
            },
            unstated="the batch size",
        ),
    )
)
