"""Generalized AsyncSGD: route tasks to clients with unequal probabilities, unbiased (Leconte et al. 2024).

The number of tasks in flight is fixed. When delta of client i arrives:
    theta <- theta + server_lr / (N * p_i) * delta
    the next task goes to client j with the probability p_j, and waits in a queue while client j trains another task

Source: abstracts and introductions of three papers. They describe the queues at the clients and an unbiased step, which
needs the factor 1 / (N * p_i). fedraa decided how the p_i are chosen; see selection/routing.py.

Read next: selection/routing.py (p_i, and the mean staleness), ledger/routed_tasks.py (the queues).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedraa.composition.method import ONE_STEP_THEORY, PLAIN_SGD, Method
from fedraa.composition.registry import register
from fedraa.numbers import Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.chunked import add_scaled


@ASYNC_RULE.register("routed-sgd")
@dataclass
class RoutedSGD(AsyncRule):
    """Generalized AsyncSGD (Leconte et al. 2024): theta += server_lr / (N p_i) * delta, whatever its staleness.

    p_i is the probability with which the selection `routing` draws client i. The option `min_share` of
    `routing` bounds the factor 1 / (N p_i). With any other selection this factor is 1. With fragments, p_i is the same
    for all fragments.

    Attributes:
        server_lr: Length of the step of a client with the probability 1/N.
    """

    server_lr: Positive = 1.0

    state_fields: ClassVar[tuple[str, ...]] = ()

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        weight = self.server_lr
        if model.probabilities is not None:
            weight /= model.clients * float(model.probabilities[update.client])
        add_scaled(model.params, update.coordinates, weight, update.new, update.sent)
        return ApplyResult(weight)


register(
    Method(
        name="generalized-asyncsgd",
        paper="Leconte et al. 2024",
        note=(
            "p_j is a power of the client's speed; a task that waited starts from the newest model; any number of "
            "local steps (the papers: one)"
        ),
        formula="`theta ← theta + server_lr / (N · p_i) · delta`; the next task goes to client j with probability p_j.",
        when="Very unequal speeds and many clients: fast clients train more often, and the mean stays unbiased.",
        local=PLAIN_SGD,
        update=RoutedSGD(),
        schedule=AsyncSchedule(next_client="routing"),
        paper_settings=ONE_STEP_THEORY,
    )
)
