"""What tasks cost: from submodels, shards and devices to the table c[n, j] that the schedulers read."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedraa.client.auto_steps import AutoSteps
from fedraa.client.compression import COMPRESSOR, wire_bytes
from fedraa.client.local_training import Solver
from fedraa.client.split import Stem
from fedraa.devices.fleet import REFERENCE_EPOCHS, Fleet, Floats, Load
from fedraa.messages import State
from fedraa.submodels.cost import Cost

Widths = tuple[int, ...]
BYTES = 4  # of one float32 parameter
# Real durations of a client that its speed is judged by; the median of a few forgets and forgives outliers.
REMEMBERED = 5
# Times that a table follows what was observed while every client is observed once: making one looks at them all.
TABLES = 64


class CostModel:
    """The modelled duration, FLOPs and bytes of any task.

    `sizes` [N] are the clients' training samples, `measure` gives the cost of a submodel shape, `unit` is the
    length of one cost unit on the run's clock (seconds on the wall clock, 1 on the virtual one). With a `stem`
    the client trains and sends that alone, billed by its FLOPs, and activations cross; then the server's part takes its
    time on a server that computes `server` times as fast as the fastest device. FLOPs are the client's alone. With a
    `frozen` base, through which every submodel goes whole, relative work is by FLOPs, else by parameters.
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
        stem: Stem | None = None,
        frozen: bool = False,
        server: float = 1.0,
        download: object = "none",
    ) -> None:
        self.fleet = fleet
        self._sizes = sizes
        self._mean_size = float(sizes.mean())
        self._solver = solver
        self._measure = measure
        self._full = measure(full)
        self._unit, self._frozen = unit, frozen
        self._stem, self._server = stem, server * float(fleet.compute.max())
        self.compressor, self.download = COMPRESSOR.make(solver.compress), COMPRESSOR.make(download)
        self._ratios: dict[int, list[float]] = {}
        self._fresh: list[tuple[int, float]] = []

    def load(
        self,
        widths: Widths,
        passed: npt.NDArray[np.float64] | float,
        down: npt.NDArray[np.float64] | float,
        up: npt.NDArray[np.float64] | float,
    ) -> Load:
        """What one task asks of a device, in the fleet's units.

        `passed` training samples go forward and backward (a sample of SAM's goes twice), `down` and `up` bytes
        move.
        """
        cost = self._trained(widths)
        if not self.fleet.relative:
            return Load(work=cost.flops * passed, down=down, up=up, memory=cost.memory)
        return Load(
            work=self._share(cost) * self._epochs(passed),
            down=down / self._full.bytes,
            up=up / self._full.bytes,
            memory=cost.memory / self._full.memory,
        )

    def cost(self, widths: Widths, client: int, down: float, up: float) -> float:
        """The modelled duration of one task that moves so many bytes, before jitter, on the run's clock.

        What was observed is not in it: it is how long the wall clock holds an update back, and a delay once seen
        would otherwise be simulated, and so seen, ever after.
        """
        passed = self._passed(widths, client)
        there = float(self.fleet.cost(self.load(widths, passed, down, up), client))
        return (there + float(self._served(passed))) * self._unit

    def _share(self, cost: Cost) -> float:
        """What training a part takes of what the full model does: by parameters, as the papers have it.

        A stem has few of them and a large share of the FLOPs, by which it is billed.
        """
        if self._stem is not None and self._stem.trunk:
            return cost.flops / (cost.flops + self._stem.trunk)
        if self._frozen:
            return cost.flops / self._full.flops
        return cost.params / self._full.params

    def _epochs(self, passed: Floats | float) -> Floats | float:
        """Samples as a part of the reference task's."""
        return passed / (self._mean_size * REFERENCE_EPOCHS)

    def _served(self, passed: Floats | float) -> Floats | float:
        """Time that the server's part of a split model takes for so many samples, in time units."""
        if self._stem is None or not self._stem.trunk:
            return 0.0
        flops = self._stem.trunk * passed
        if self.fleet.relative:
            flops = self._stem.trunk / (self._stem.cost.flops + self._stem.trunk) * self._epochs(passed)
        return flops / self._server

    def flops(self, widths: Widths, client: int) -> float:
        """FLOPs of one task on the client."""
        return self._trained(widths).flops * self._passed(widths, client)

    def samples(self, widths: Widths, client: int) -> float:
        """Training samples that the client's steps of one task are taken on."""
        steps, shard = self.steps(widths, client), int(self._sizes[client])
        return float(self._solver.samples(shard) if steps is None else self._solver.samples_in(steps, shard))

    def steps(self, widths: Widths, client: int) -> int | None:
        """Local steps of one task on the client, where they follow from costs; None where the solver says how many."""
        auto = self._solver.auto
        return None if auto is None else int(self._auto_steps(auto, widths, np.array([client]))[0])

    def rates(self, shapes: Sequence[Widths], table: Floats) -> Floats:
        """Local steps per unit of time [N], the mean over those of the shapes that a client can hold.

        `table` [N, M] is how long it is from one task to the next.
        """
        held = np.isfinite(table)
        return np.asarray((self.all_steps(shapes) / table).sum(axis=1) / np.maximum(1, held.sum(axis=1)))

    def all_steps(self, shapes: Sequence[Widths]) -> Floats:
        """Local steps of one task of all clients on each of the shapes [N, M]."""
        auto, everyone = self._solver.auto, np.arange(len(self._sizes))
        if auto is None:
            return np.repeat(self._by_size(self._solver.batches)[:, None], len(shapes), axis=1)
        return np.stack([self._auto_steps(auto, widths, everyone) for widths in shapes], axis=1).astype(np.float64)

    def sent(self, widths: Widths) -> int:
        """Bytes of a submodel on the wire, one way."""
        return self._trained(widths).bytes

    def crossing(self, client: int) -> int:
        """Bytes of activations, and as many of their gradients, that cross a split model in one task, in all passes."""
        if self._stem is None:
            return 0
        return BYTES * self._stem.activations * self._solver.passed_samples(int(self._sizes[client]))

    def table(self, shapes: Sequence[Widths]) -> Floats:
        """c[n, j] [N, M] of one task on each of the shapes, as far as is known; infinite where it cannot be held."""
        columns = []
        for widths in shapes:
            passed = self._all_passed(widths)
            load = self.load(widths, passed, *self._moved(widths))
            columns.append(np.where(self.fleet.fits(load), self.fleet.cost(load) + self._served(passed), np.inf))
        table = np.stack(columns, axis=1) * self._unit
        for client in self._ratios:
            table[client] *= self._speed(client)
        return table

    def observe(self, widths: Widths, client: int, real: float) -> bool:
        """Learn from a real duration: the client's row of later tables is scaled by the median of its last ratios.

        Returns whether tables are others now; in a fleet of over `TABLES` clients that takes several observations.
        """
        self._fresh.append((client, real / self.cost(widths, client, *self._moved(widths))))
        if len(self._fresh) < -(-len(self._sizes) // TABLES):
            return False
        for who, ratio in self._fresh:
            ratios = self._ratios.setdefault(who, [])
            ratios.append(ratio)
            del ratios[:-REMEMBERED]
        self._fresh.clear()
        return True

    def state(self) -> State:
        ratios = {str(client): ratios for client, ratios in self._ratios.items()}
        return {"ratios": ratios, "fresh": [[client, ratio] for client, ratio in self._fresh]}

    def restore(self, state: State) -> None:
        self._ratios = {int(client): list(ratios) for client, ratios in state["ratios"].items()}
        self._fresh = [(client, ratio) for client, ratio in state["fresh"]]

    def _passed(self, widths: Widths, client: int) -> float:
        """Samples that go forward and backward in one task on the client."""
        steps, shard = self.steps(widths, client), int(self._sizes[client])
        if steps is None:
            return self._solver.passed_samples(shard)
        return float(self._solver.passed_in(steps, shard))

    def _all_passed(self, widths: Widths) -> Floats:
        """The same for all clients [N]."""
        auto = self._solver.auto
        if auto is None:
            return self._by_size(self._solver.passed_samples)
        return self._solver.passed_in(self._auto_steps(auto, widths, np.arange(len(self._sizes))), self._sizes)

    def _by_size(self, of: Callable[[int], int]) -> Floats:
        """What follows from the samples of a client, for all clients [N]."""
        sizes, shard = np.unique(self._sizes, return_inverse=True)
        return np.array([of(int(size)) for size in sizes], np.float64)[shard]

    def _auto_steps(self, auto: AutoSteps, widths: Widths, clients: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Local steps of one task on each of the clients [n]."""
        shards = self._sizes[clients]
        batch = self._solver.samples_in(1, shards) * self._solver.passes
        move = self.fleet.cost(self.load(widths, 0.0, *self._moved(widths)), clients)
        start = self.fleet.cost(Load(0.0, 0.0, 0.0), clients)
        step = self.fleet.cost(self.load(widths, batch, 0.0, 0.0), clients) - start
        return auto.count(move, step, self._solver.minibatches(shards))

    def _trained(self, widths: Widths) -> Cost:
        return self._measure(widths) if self._stem is None else self._stem.cost

    def _moved(self, widths: Widths) -> tuple[int, int]:
        """Bytes down and up of a dense submodel."""
        sent = self.sent(widths)
        return wire_bytes(self.download, sent // BYTES), wire_bytes(self.compressor, sent // BYTES)

    def _speed(self, client: int) -> float:
        ratios = self._ratios.get(client)
        return float(np.median(ratios)) if ratios else 1.0
