"""What tasks cost: from submodels, shards and devices to the table c[n, j] that the schedulers read."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedraa.fleet import REFERENCE_EPOCHS, Fleet, Floats, Load
from fedraa.local.solver import Solver
from fedraa.submodels.cost import Cost

Widths = tuple[int, ...]
BYTES = 4  # of one float32 parameter
# Real durations of a client that its speed is judged by; the median of a few forgets and forgives outliers.
REMEMBERED = 5


class CostModel:
    """The modelled duration, FLOPs and bytes of any task.

    `sizes` [N] are the clients' training samples, `measure` gives the cost of a submodel shape, `unit` is the
    length of one cost unit on the run's clock (seconds on the wall clock, 1 on the virtual one).
    """

    def __init__(
        self,
        fleet: Fleet,
        sizes: npt.NDArray[np.int64],
        solver: Solver,
        measure: Callable[[Widths], Cost],
        full: Widths,
        *,
        unit: float = 1.0,
    ) -> None:
        self.fleet = fleet
        self._sizes = sizes
        self._mean_size = float(sizes.mean())
        self._solver = solver
        self._measure = measure
        self._full = measure(full)
        self._unit = unit
        self._ratios: dict[int, list[float]] = {}

    def load(self, widths: Widths, samples: npt.NDArray[np.float64] | float) -> Load:
        """What one task on `samples` processed samples asks of a device, in the fleet's units."""
        cost = self._measure(widths)
        if not self.fleet.relative:
            work = cost.flops * samples * self._solver.passes
            return Load(work=work, down=cost.bytes, up=cost.bytes, memory=cost.memory)
        share = cost.params / self._full.params
        reference = self._mean_size * REFERENCE_EPOCHS
        work = share * self._solver.passes * samples / reference
        return Load(work=work, down=share, up=share, memory=cost.memory / self._full.memory)

    def cost(self, widths: Widths, client: int) -> float:
        """The modelled duration of one task, before jitter, on the run's clock."""
        return self._modelled(widths, client) * self._speed(client)

    def flops(self, widths: Widths, client: int) -> float:
        samples = self._solver.samples(int(self._sizes[client]))
        return self._measure(widths).flops * samples * self._solver.passes

    def table(self, shapes: Sequence[Widths]) -> Floats:
        """c[n, j] [N, M] of one task on each of the shapes; infinite where the device cannot hold it."""
        sizes, shard = np.unique(self._sizes, return_inverse=True)
        samples = np.array([self._solver.samples(int(size)) for size in sizes], np.float64)[shard]
        columns = []
        for widths in shapes:
            load = self.load(widths, samples)
            columns.append(np.where(self.fleet.fits(load), self.fleet.cost(load), np.inf))
        table = np.stack(columns, axis=1) * self._unit
        for client in self._ratios:
            table[client] *= self._speed(client)
        return table

    def observe(self, widths: Widths, client: int, real: float) -> None:
        """Learn from a real duration: later costs of the client are scaled by the median of its last ratios."""
        ratios = self._ratios.setdefault(client, [])
        ratios.append(real / self._modelled(widths, client))
        del ratios[:-REMEMBERED]

    def _modelled(self, widths: Widths, client: int) -> float:
        samples = self._solver.samples(int(self._sizes[client]))
        return float(self.fleet.cost(self.load(widths, samples), client)) * self._unit

    def _speed(self, client: int) -> float:
        ratios = self._ratios.get(client)
        return float(np.median(ratios)) if ratios else 1.0
