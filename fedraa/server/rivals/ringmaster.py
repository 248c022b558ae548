"""Ringmaster: what is too stale is ignored."""

from dataclasses import dataclass
from typing import Any

from fedraa.numbers import Count, Positive
from fedraa.server.async_rule import Arrival, AsyncModel, AsyncRule, Taken
from fedraa.vectors.chunked import accumulate


@dataclass
class Ringmaster(AsyncRule):
    """Ringmaster ASGD (Maranjyan, Tyurin, Richtarik 2025, Algorithm 4): theta += server_lr * delta if staleness < R.

    What is staler is ignored, with weight 0 and no new version, and its client goes on from the present model; its
    work is billed. R is `delay_limit`; without one as many as there are clients. Tasks are not stopped (Algorithm 5).
    """

    delay_limit: Count | None = None
    server_lr: Positive = 1.0

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        if arrival.staleness >= (self.delay_limit or model.clients):
            return Taken(0.0, False)
        accumulate(model.params, arrival.places, self.server_lr, arrival.new, arrival.sent)
        return Taken(self.server_lr)

    def state(self) -> dict[str, Any]:
        return {}
