"""Ringmaster ASGD: ignore updates that are too stale (Maranjyan, Tyurin, Richtarik 2025, Algorithm 4).

When delta arrives with staleness k:
    if k < R:  theta <- theta + server_lr * delta
    else:      ignore the update; the client starts again from the current theta

Read next: server/async_rule.py (the interface of a rule), server/async_server.py (its caller).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedraa.composition.method import ONE_STEP_THEORY, PLAIN_SGD, Method
from fedraa.composition.registry import register
from fedraa.numbers import Count, Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.chunked import add_scaled


@ASYNC_RULE.register("ringmaster")
@dataclass
class Ringmaster(AsyncRule):
    """Ringmaster ASGD (Maranjyan, Tyurin, Richtarik 2025, Algorithm 4): theta += server_lr * delta if staleness < R.

    Updates of staleness R or more are ignored: their weight is 0, and they make no new version. Their clients continue
    from the current model, and their work still counts as cost. Running tasks are not stopped; Algorithm 5 of the paper
    stops them.

    Attributes:
        delay_limit: R: an update of this staleness or more is ignored; None sets R to the number of clients.
        server_lr: Length of the step.
    """

    delay_limit: Count | None = None
    server_lr: Positive = 1.0

    state_fields: ClassVar[tuple[str, ...]] = ()

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        if update.staleness >= (self.delay_limit or model.clients):
            return ApplyResult(0.0, False)
        add_scaled(model.params, update.coordinates, self.server_lr, update.new, update.sent)
        return ApplyResult(self.server_lr)


register(
    Method(
        name="ringmaster",
        paper="Maranjyan, Tyurin, Richtarik 2025, Algorithm 4",
        note="for equal data: it ignores slow clients, so that unequal data bias the model; tasks are not stopped",
        formula="`theta ← theta + server_lr · delta` if its staleness is below delay_limit, else no change.",
        when="Equal data and a few very slow devices. With unequal data the model is biased towards fast clients.",
        local=PLAIN_SGD,
        update=Ringmaster(),
        schedule=AsyncSchedule(),
        paper_settings=replace(ONE_STEP_THEORY, unstated="the learning rate, and R, which the paper takes from a grid"),
    )
)
