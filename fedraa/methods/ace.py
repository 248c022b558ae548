"""ACE: step along the mean of the last deltas of all clients (Chang et al. 2025; formerly IA2SGD).

When delta of client i arrives:
    u_i <- delta
    if every client has reported at least once:
        theta <- theta + server_lr * mean over all N clients of u_i

Read next: methods/ca2fl.py (the table of deltas), server/async_server.py (the server).
"""

from dataclasses import dataclass
from typing import ClassVar

from fedraa.composition.method import ONE_STEP_THEORY, PLAIN_SGD, Method
from fedraa.composition.registry import register
from fedraa.methods.ca2fl import DeltaCache
from fedraa.numbers import Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.chunked import step_along


@ASYNC_RULE.register("ace")
@dataclass
class ACE(AsyncRule):
    """ACE (Chang et al. 2025), formerly IA2SGD: theta += server_lr * the mean of all clients' last deltas.

    The model does not change until every client has sent an update. After that, each update moves the model, and the
    staleness of the update has no effect. The last delta of a quarantined client stays in the mean.
    """

    server_lr: Positive = 1.0

    keeps: ClassVar[str] = "u_i [N, d]"
    needs_all_clients: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_cache", "_awaited")

    def start(self, model: AsyncModel) -> None:
        self._cache = DeltaCache(len(model.params), model.clients)
        self._awaited = set(range(model.clients))

    def leave(self, client: int) -> None:
        self._awaited.discard(client)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        self._awaited.discard(update.client)
        self._cache.put(update.client, update.change)
        complete = not self._awaited
        if complete:
            step_along(model.params, self.server_lr, self._cache.mean)
        return ApplyResult(self.server_lr / model.clients, complete)

    def memory(self, size: int, clients: int) -> int:
        return size * (4 * clients + 8)


register(
    Method(
        name="ace",
        paper="Chang et al. 2025",
        note="no step before every client has reported; any number of local steps (the paper: one)",
        formula="`theta ← theta + server_lr · mean of all clients' last deltas`, at every update after all reported.",
        when="Few clients with very different data: fast clients have no more weight than slow ones.",
        local=PLAIN_SGD,
        update=ACE(),
        schedule=AsyncSchedule(),
        paper_settings=ONE_STEP_THEORY,
    )
)
