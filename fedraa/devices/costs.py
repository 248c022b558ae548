"""The cost of tasks, from submodels, shards and devices, and the table c[n, j] that schedulers read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.client.auto_steps import AutoSteps
from fedraa.client.compression import COMPRESSOR, wire_bytes
from fedraa.client.local_training import LocalTraining
from fedraa.client.split import ClientHalf
from fedraa.components.state import Stateful
from fedraa.devices.fleet import REFERENCE_EPOCHS, Fleet, Floats, Load, TaskTimes
from fedraa.submodels.cost import Cost

Widths = tuple[int, ...]
# Number of bytes of one float32 parameter.
BYTES = 4
# Number of recent durations that determine a client's speed. Their median ignores outliers and adapts soon.
REMEMBERED = 5
# Maximum number of new tables while every client is observed once. A new table is expensive: it covers all clients.
TABLES = 64
# Number of recent tasks, of any clients, of which the fastest determines the speed of the workers.
PACES = 20


@dataclass(frozen=True)
class CostSettings:
    """The properties of a run that change its costs.

    Attributes:
        unit: The length of one cost unit on the run's clock: seconds on the wall clock, 1 on the virtual clock.
        stem: The client's part of a split model, or None. Only this part is trained and sent by the client, and its
            cost follows from its FLOPs. Activations and gradients also cross the network.
        frozen: True if a frozen base is always computed in full. Relative work is then measured in FLOPs, not in
            parameters.
        server: The speed of the server for its part of a split model, relative to the fastest device.
        download: The compressor of models that the server sends.
    """

    unit: float = 1.0
    stem: ClientHalf | None = None
    frozen: bool = False
    server: float = 1.0
    download: object = "none"


def training_time(duration: float, cost: float, waited: float) -> float:
    """Return the time that a task took its device, without the time in which the task waited for a worker.

    It is at least the modelled duration, for which an update is held back, unless the task returned earlier.

    Args:
        duration: Time from the dispatch of the task to its update.
        cost: The modelled duration of the task.
        waited: Time in which no worker trained the task.
    """
    return min(duration, max(cost, duration - waited))


class CostModel(Stateful):
    """A model of the duration, FLOPs and bytes of any task. FLOPs are only those on the client.

    Args:
        fleet: The devices.
        sizes: The number of training samples of each client, [N].
        solver: The settings of local training.
        measure: A function that returns the cost of a submodel shape.
        full: The shape of the full model.
        settings: The properties of the run that change its costs.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_ratios", "_fresh", "_paces")

    def __init__(
        self,
        fleet: Fleet,
        sizes: npt.NDArray[np.int64],
        solver: LocalTraining,
        measure: Callable[[Widths], Cost],
        full: Widths,
        settings: CostSettings,
    ) -> None:
        self.fleet = fleet
        self._sizes = sizes
        self._mean_size = float(sizes.mean())
        self._solver = solver
        self._measure = measure
        self._full_widths = full
        self._full = measure(full)
        self._unit = settings.unit
        self._frozen = settings.frozen
        self._stem = settings.stem
        self._server = settings.server * float(fleet.compute.max())
        self.compressor = COMPRESSOR.resolve(solver.compressor)
        self.download = COMPRESSOR.resolve(settings.download)
        self._ratios: dict[int, list[float]] = {}
        self._fresh: list[tuple[int, float]] = []
        # Seconds of a worker per sample pass in recent tasks.
        self._paces: list[float] = []

    def load(
        self,
        widths: Widths,
        passed: npt.NDArray[np.float64] | float,
        down: npt.NDArray[np.float64] | float,
        up: npt.NDArray[np.float64] | float,
    ) -> Load:
        """Return the load of one task on a device, in the fleet's units.

        Args:
            widths: The shape of the submodel.
            passed: The number of forward and backward passes of a sample; SAM passes each sample twice.
            down: The number of bytes that the client receives.
            up: The number of bytes that the client sends.
        """
        cost = self._trained_cost(widths)
        if not self.fleet.relative:
            return Load(work=cost.flops * passed, down=down, up=up, memory=cost.memory)
        return Load(
            work=self._work_share(cost) * self._reference_share(passed),
            down=down / self._full.bytes,
            up=up / self._full.bytes,
            memory=cost.memory / self._full.memory,
        )

    def cost(
        self,
        widths: Widths,
        client: int,
        down: float,
        up: float,
        now: float | None = None,
        steps: int | None = None,
        work: float = 1.0,
    ) -> float:
        """Return the modelled duration of one task on the run's clock, before jitter.

        Unlike `table`, this does not use observed durations. On the wall clock an update is held back for this
        duration. With observed durations, one delay would therefore be simulated and observed again and again.

        Args:
            widths: The shape of the submodel.
            client: The client.
            down: The number of bytes that the client receives.
            up: The number of bytes that the client sends.
            now: The time on the run's clock at which the server sends the task. It matters only for links that change
                with time. None: their means.
            steps: The local steps of a task that was cut short; None for a whole task.
            work: FLOPs of the task, as a share of those for training the whole submodel.
        """
        return self._times(widths, client, (down, up), now, steps, work).total * self._unit

    def energy(
        self,
        widths: Widths,
        client: int,
        down: float,
        up: float,
        now: float | None = None,
        steps: int | None = None,
        work: float = 1.0,
    ) -> float | None:
        """Return the modelled energy of one task in joules, before jitter, or None if the devices have no watts.

        The arguments are those of `cost`. The energy is that of the modelled device on any clock.
        """
        if not self.fleet.watts:
            return None
        return self.fleet.energy(self._times(widths, client, (down, up), now, steps, work), client)

    def _times(
        self,
        widths: Widths,
        client: int,
        traffic: tuple[float, float],
        now: float | None,
        steps: int | None,
        work: float,
    ) -> TaskTimes:
        """Return the duration of each phase of one task in time units.

        `traffic` has the bytes down and up. The other arguments are those of `cost`.
        """
        passed = self._sample_passes(widths, client, steps) * work
        start = None
        if now is not None:
            start = now / self._unit
        return self.fleet.times(self.load(widths, passed, *traffic), client, start, float(self._server_time(passed)))

    def _work_share(self, cost: Cost) -> float:
        """Return the work of training a submodel, as a fraction of the work for the full model.

        The fraction is that of parameters, as in the papers. For a split model or a frozen base it is that of FLOPs,
        because a stem has few parameters but a large share of the FLOPs.
        """
        if self._stem is not None and self._stem.server_flops:
            return cost.flops / (cost.flops + self._stem.server_flops)
        if self._frozen:
            return cost.flops / self._full.flops
        return cost.params / self._full.params

    def _reference_share(self, passed: Floats | float) -> Floats | float:
        """Return the number of samples as a fraction of the reference task's number."""
        return passed / (self._mean_size * REFERENCE_EPOCHS)

    def _server_time(self, passed: Floats | float) -> Floats | float:
        """Return the time for `passed` samples in the server's part of a split model, in time units."""
        if self._stem is None or not self._stem.server_flops:
            return 0.0
        flops = self._stem.server_flops * passed
        if self.fleet.relative:
            flops = (
                self._stem.server_flops
                / (self._stem.cost.flops + self._stem.server_flops)
                * self._reference_share(passed)
            )
        return flops / self._server

    def flops(self, widths: Widths, client: int, steps: int | None = None) -> float:
        """Return the FLOPs of one task on the client. `steps` are those of a task that was cut short."""
        return self._trained_cost(widths).flops * self._sample_passes(widths, client, steps)

    def count_steps(self, widths: Widths, client: int) -> int:
        """Return the local steps of one whole task."""
        steps = self.steps(widths, client)
        if steps is None:
            return self._solver.count_steps(int(self._sizes[client]))
        return steps

    def path_length(self, lr: float, steps: int) -> float:
        """Return the length of a path of local steps by gradients of length 1, given their mean learning rate."""
        return self._solver.path_length(lr, steps)

    def samples(self, widths: Widths, client: int, steps: int | None = None) -> float:
        """Return the number of training samples in one task. `steps` are those of a task that was cut short."""
        if steps is None:
            steps = self.steps(widths, client)
        shard = int(self._sizes[client])
        if steps is None:
            return float(self._solver.samples(shard))
        return float(self._solver.samples_in(steps, shard))

    def steps(self, widths: Widths, client: int) -> int | None:
        """Return the local steps of one task if they follow from costs (`auto`), otherwise None."""
        auto = self._solver.auto
        if auto is None:
            return None
        return int(self._auto_steps(auto, widths, np.array([client]))[0])

    def step_rates(self, shapes: Sequence[Widths], table: Floats) -> Floats:
        """Return the local steps per unit of time [N], as the mean over the shapes that fit the client's memory.

        `table` [N, M] is the time between the starts of two successive tasks.
        """
        held = np.isfinite(table)
        return np.asarray((self.all_steps(shapes) / table).sum(axis=1) / np.maximum(1, held.sum(axis=1)))

    def all_steps(self, shapes: Sequence[Widths]) -> Floats:
        """Return the local steps of one task for every client and shape, [N, M]."""
        auto = self._solver.auto
        if auto is None:
            return np.repeat(self._by_size(self._solver.count_steps)[:, None], len(shapes), axis=1)
        clients = np.arange(len(self._sizes))
        return np.stack([self._auto_steps(auto, widths, clients) for widths in shapes], axis=1).astype(np.float64)

    def sent(self, widths: Widths) -> int:
        """Return the bytes of an uncompressed submodel, in one direction, without its personal layers."""
        cost = self._trained_cost(widths)
        return cost.bytes - BYTES * cost.personal

    def activation_bytes(self, client: int) -> int:
        """Return the bytes of activations that the client of a split model sends in one task.

        The gradients that it receives have the same size.
        """
        if self._stem is None:
            return 0
        return BYTES * self._stem.activations * int(self._solver.passed_samples(int(self._sizes[client])))

    def table(self, shapes: Sequence[Widths]) -> Floats:
        """Return c[n, j] [N, M], the duration of one task of client n on shape j, scaled by observed durations.

        It is infinite if the shape does not fit the client's memory. Links that change with time have their means.
        """
        columns = []
        for widths in shapes:
            passed = self._all_passed(widths)
            load = self.load(widths, passed, *self.moved_bytes(widths))
            columns.append(
                np.where(self.fleet.fits_memory(load), self.fleet.cost(load) + self._server_time(passed), np.inf)
            )
        table = np.stack(columns, axis=1) * self._unit
        for client in self._ratios:
            table[client] *= self._duration_ratio(client)
        return table

    def expected_durations(self, shapes: Sequence[Widths]) -> Floats:
        """Return the modelled duration of one task of every client [N].

        It is the mean over the shapes that the client can hold. Without shapes it is that of the full model. A client
        that can hold none of them gets the longest duration of the other clients.

        Args:
            shapes: The submodels from which a scheduler chooses.
        """
        table = self.table(shapes or [self._full_widths])
        held = np.isfinite(table)
        durations = np.where(held, table, 0.0).sum(axis=1) / np.maximum(1, held.sum(axis=1))
        durations[~held.any(axis=1)] = durations.max()
        return np.asarray(durations)

    def observe(self, widths: Widths, client: int, real: float, seconds: float = 0.0) -> bool:
        """Record a real duration of a task; return True if the cost table changed.

        The client's row in the table is scaled by the median of its last `REMEMBERED` ratios of real to modelled
        durations. A machine may need longer for a task than the fastest devices do. This is no slowness of a device, so
        that the modelled duration is at least the time that the fastest of the recent tasks would have taken for these
        samples. If there are more than `TABLES` clients, the table changes only after several observations.

        Args:
            widths: The shape of the submodel.
            client: The client.
            real: The duration on the run's clock.
            seconds: The worker's real time.
        """
        passes = self._sample_passes(widths, client)
        self._paces.append(seconds / passes)
        del self._paces[:-PACES]
        modelled = max(self.cost(widths, client, *self.moved_bytes(widths)), passes * min(self._paces))
        self._fresh.append((client, real / modelled))
        if len(self._fresh) < -(-len(self._sizes) // TABLES):
            return False
        for observed, ratio in self._fresh:
            ratios = self._ratios.setdefault(observed, [])
            ratios.append(ratio)
            del ratios[:-REMEMBERED]
        self._fresh.clear()
        return True

    def _sample_passes(self, widths: Widths, client: int, steps: int | None = None) -> float:
        """Return the number of sample passes, forward and backward, in one task on the client.

        `steps` are those of a task that was cut short.
        """
        if steps is None:
            steps = self.steps(widths, client)
        shard = int(self._sizes[client])
        if steps is None:
            return self._solver.passed_samples(shard)
        return float(self._solver.passed_in(steps, shard))

    def _all_passed(self, widths: Widths) -> Floats:
        """Return the number of sample passes in one task for every client, [N]."""
        auto = self._solver.auto
        if auto is None:
            return self._by_size(self._solver.passed_samples)
        return self._solver.passed_in(self._auto_steps(auto, widths, np.arange(len(self._sizes))), self._sizes)

    def _by_size(self, of: Callable[[int], float]) -> Floats:
        """Return `of(size)` for the data size of every client, [N].

        The function is called once for each distinct size.
        """
        sizes, shard = np.unique(self._sizes, return_inverse=True)
        return np.array([of(int(size)) for size in sizes], np.float64)[shard]

    def _auto_steps(self, auto: AutoSteps, widths: Widths, clients: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of local steps of one task on each of the clients, [n].

        Args:
            auto: The rule that derives the number from the costs.
            widths: The shape of the submodel.
            clients: The clients, [n].
        """
        shards = self._sizes[clients]
        batch = self._solver.samples_in(1, shards) * self._solver.passes
        move = self.fleet.cost(self.load(widths, 0.0, *self.moved_bytes(widths)), clients)
        start = self.fleet.cost(Load(0.0, 0.0, 0.0), clients)
        step = self.fleet.cost(self.load(widths, batch, 0.0, 0.0), clients) - start
        return auto.count(move, step, self._solver.count_minibatches(shards))

    def _trained_cost(self, widths: Widths) -> Cost:
        """Return the cost of the part of a submodel that the client trains."""
        if self._stem is not None:
            return self._stem.cost
        return self._measure(widths)

    def moved_bytes(self, widths: Widths) -> tuple[int, int]:
        """Return the bytes down and up of a dense submodel after compression."""
        sent = self.sent(widths)
        return wire_bytes(self.download, sent // BYTES), wire_bytes(self.compressor, sent // BYTES)

    def _duration_ratio(self, client: int) -> float:
        """Return the median ratio of the client's real durations to the modelled ones."""
        return float(np.median(self._ratios.get(client, [1.0])))
