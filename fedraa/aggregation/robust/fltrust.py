"""FLTrust: weight each delta by its cosine with a trusted delta (Cao et al. 2021, Algorithm 2).

g0 = the delta that the server trains on its few trusted samples
    s_i = max(0, cos(delta_i, g0))
    delta = sum of s_i * ||g0|| / ||delta_i|| * delta_i / sum of s_i

Submodels: cosines and norms use only the client's coordinates. The sums run over the clients that trained a coordinate.

In fedraa, the client `root` computes g0 instead of the server. Its training samples are the trusted samples. It trains
in every round, but its delta is not part of the sum. The paper uses 100 trusted samples.

The model does not change in a round in which all s_i are 0 or the client `root` fails. If this client fails more often
than `client_retries` allows, the run fails.

Use FLTrust if the server has a few trusted samples. It withstands a majority of attackers.

Read next: aggregation/robust/rows.py (the rows of the clients), server/round_server.py (the round).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import Numbers, RobustAggregator, Votes, measure_rows, weighted_mean


@AGGREGATOR.register("fltrust")
@dataclass
class FLTrust(RobustAggregator):
    """Mean of the deltas. The weight of a delta is its cosine with the delta of a trusted client (Cao et al. 2021).

    FLTrust works only in rounds, because all deltas must start from the same model.

    Attributes:
        root: The number of the client with the trusted samples, from 0.
    """

    root: Annotated[int, Field(ge=0)] = 0

    buffers: ClassVar[bool] = False
    weighs: ClassVar[bool] = False

    @property
    def needed_client(self) -> int:
        return self.root

    @property
    def min_clients(self) -> int:
        return 2

    def combine(self, votes: Votes) -> Numbers:
        nothing = np.full(self._size, np.nan)
        if self.root not in votes.clients or len(votes.clients) == 1:
            return nothing
        position = votes.clients.index(self.root)
        trusted = votes.rows[position]
        rows = [row for i, row in enumerate(votes.rows) if i != position]
        own = [np.where(np.isnan(row), np.float32(np.nan), trusted) for row in rows]
        norms, _ = measure_rows(rows)
        trusted_norms, _ = measure_rows(own)
        # The inner product <a, b> is summed directly. Computed from norms of a, b and a - b, it would lose digits.
        products = np.array([float(np.nansum(a.astype(np.float64) * b)) for a, b in zip(rows, own, strict=True)])
        scales = np.divide(trusted_norms, norms, out=np.zeros_like(norms), where=norms > 0)
        lengths = norms * trusted_norms
        cosines = np.divide(products, lengths, out=np.zeros_like(norms), where=lengths > 0)
        trust = np.maximum(0.0, cosines)
        if not trust.any():
            return nothing
        return weighted_mean(rows, trust, scales)
