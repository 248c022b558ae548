"""The base class of HetLoRA and FLoRA. Both average low-rank adapters of different ranks."""

from dataclasses import dataclass

import numpy as np

from fedraa.aggregation.adapters import Pair, find_adapters
from fedraa.aggregation.aggregator import ClientDelta
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.errors import InputError
from fedraa.messages import Index, Mask, Vector
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import RunContext


@dataclass
class LowRank(CoverageMean):
    """A `CoverageMean` for models with low-rank adapters. Without adapters, it equals `CoverageMean`."""

    def start(self, size: int, clients: int) -> None:
        super().start(size, clients)
        self._pairs: list[Pair] = []

    def see(self, run: RunContext) -> None:
        self._run = run
        self._pairs = find_adapters(run.traced)

    def traffic_sizes(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        if self._pairs and assignment.mask is not None:
            raise InputError(
                "aggregator",
                f"{type(self).__name__} needs submodels of whole units, but these submodels are masks of weights",
                hint="give --submodel full, prefix or rolling",
            )
        return None

    @property
    def _params(self) -> Vector:
        """Return the parameters [d] of the current model."""
        assert self._run.params is not None
        return self._run.params

    def _pad_trained(self, contribution: ClientDelta) -> Vector:
        """Return the client's trained weights as a vector [d]. It is 0 on coordinates that the client did not train."""
        padded = np.zeros_like(self._params)

        def put_piece(place: Index | slice, delta: Vector) -> None:
            padded[place] = self._params[place] + delta

        contribution.change.feed_consumers(put_piece)
        return padded

    def _adapter_mask(self) -> Mask:
        mine = np.zeros(self._size, bool)
        for pair in self._pairs:
            mine[pair.a] = mine[pair.b] = True
        return mine

    def memory(self, size: int, clients: int) -> int:
        return super().memory(size, clients) + 4 * size
