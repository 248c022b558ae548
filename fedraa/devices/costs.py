"""The model of a task's cost: duration, FLOPs, traffic and energy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.client.auto_steps import AutoSteps
from fedraa.client.compression import COMPRESSOR, wire_bytes
from fedraa.client.local_training import LocalTraining
from fedraa.client.split import SplitCosts
from fedraa.components.state import Stateful
from fedraa.devices.fleet import REFERENCE_EPOCHS, Fleet, Load
from fedraa.devices.modelled_cost import ModelledCost
from fedraa.messages import ExtraBuffers, Floats
from fedraa.submodels.cost import Cost

Widths = tuple[int, ...]
FLOAT32_BYTES = 4
# A client's speed is estimated from the median of this number of its last observed durations.
DURATION_WINDOW = 5
# While the server gets the first observation of each client, it computes the cost table at most this number of times,
# because a table of all clients is expensive.
MAX_FIRST_TABLES = 64
# The workers' speed is estimated from the fastest among this number of recent tasks of all clients.
PACE_WINDOW = 20
MAX_KNOWN_STEPS = 1 << 16


@dataclass(frozen=True)
class CostSettings:
    """The properties of a run that change its costs.

    Attributes:
        unit: Seconds of the wall clock per time unit; 1 on the virtual clock.
        stem: The client's part of a split model; None without a split. The client trains and sends only this part, and
            also exchanges activations and their gradients with the server.
        frozen: True if the model has frozen layers. Every task computes all frozen layers, even for a small submodel.
            The work of a submodel is then measured in FLOPs, not in parameters.
        server: The speed of the server for its part of a split model, as a multiple of the fastest device's speed.
        download: The compressor of the models that the server sends.
        label_overlap: The overlap of the clients' labels, on which the number of local steps of `auto` depends.
        extra_buffers: The numbers of buffers that the method sends besides the submodel, such as control variates.
    """

    unit: float = 1.0
    stem: SplitCosts | None = None
    frozen: bool = False
    server: float = 1.0
    download: object = "none"
    label_overlap: float = 1.0
    extra_buffers: ExtraBuffers = field(default_factory=ExtraBuffers)


def training_time(duration: float, cost: float, waited: float) -> float:
    """Return the observed duration of a task on the wall clock, without the time that it waited for a worker.

    The server holds an update back until the modelled duration `cost` has passed. The result is therefore at least
    `cost`, but never more than `duration`.

    Args:
        duration: The time from the dispatch of the task to its update.
        cost: The modelled duration of the task.
        waited: The time that the task waited for a worker.
    """
    return min(duration, max(cost, duration - waited))


class CostModel(Stateful):
    """A model of the duration, the FLOPs, the bytes and the energy of any task. FLOPs of the server do not count.

    A sample pass is a forward and backward pass of one sample. SAM needs two sample passes for each sample.

    Args:
        fleet: The devices.
        sizes: The number of training samples of each client, [N].
        local: The settings of local training.
        measure: A function that returns the cost of a submodel from its widths (kept units of each width group).
        full: The widths of the full model.
        settings: The properties of the run that change its costs.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_ratios", "_fresh", "_paces")

    def __init__(
        self,
        fleet: Fleet,
        sizes: npt.NDArray[np.int64],
        local: LocalTraining,
        measure: Callable[[Widths], Cost],
        full: Widths,
        settings: CostSettings,
    ) -> None:
        self.fleet = fleet
        self._sizes = sizes
        self._mean_size = float(sizes.mean())
        self._local = local
        self._measure = measure
        self._full_widths = full
        self._full = measure(full)
        self._unit = settings.unit
        self._frozen = settings.frozen
        self._stem = settings.stem
        self._label_overlap = settings.label_overlap
        self._extra_buffers = settings.extra_buffers
        self._server = settings.server * float(fleet.compute.max())
        self.compressor = COMPRESSOR.resolve(local.compressor)
        self.download = COMPRESSOR.resolve(settings.download)
        # The numbers of steps that `auto` gave. A task needs its number several times.
        self._known_steps: dict[tuple[Widths, int], int] = {}
        self._ratios: dict[int, list[float]] = {}
        self._fresh: list[tuple[int, float]] = []
        # For each recent task, the worker's seconds for one pass of one sample.
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
            widths: The widths of the submodel.
            passed: The number of sample passes.
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
    ) -> ModelledCost:
        """Return the modelled cost of one task.

        Unlike an entry of `table`, the duration does not depend on observed durations. The server applies an update
        only after this duration. A duration from observations would therefore contain the server's own delays.

        Args:
            widths: The widths of the submodel.
            client: The client.
            down: The number of bytes that the client receives.
            up: The number of bytes that the client sends.
            now: The time at which the server sends the task, for links that change with time; None to use the mean
                bandwidths.
            steps: The number of local steps if the task ends early; None for a whole task.
            work: The FLOPs of the task as a share of the FLOPs of training the whole submodel.
        """
        passed = self.sample_passes(widths, client, steps) * work
        start = None if now is None else now / self._unit
        load = self.load(widths, passed, down, up)
        times = self.fleet.times(load, client, start, float(self._server_time(passed)))
        begin = times.latency + times.down
        end = begin + times.train
        if self._stem is not None:
            begin = times.latency
            end = times.total
        training = (begin * self._unit, end * self._unit)
        return ModelledCost(times.total * self._unit, self.fleet.energy(times, client), training)

    def _work_share(self, cost: Cost) -> float:
        """Return the work of training a submodel as a share of the work of training the full model.

        It is the share of the parameters, as in the papers. For a split model or a model with frozen layers it is the
        share of the FLOPs.
        """
        if self._stem is not None and self._stem.server_flops:
            return cost.flops / (cost.flops + self._stem.server_flops)
        if self._frozen:
            return cost.flops / self._full.flops
        return cost.params / self._full.params

    def _reference_share(self, passed: Floats | float) -> Floats | float:
        """Return `passed` / (sample passes of the reference task: 5 epochs on the mean number of samples)."""
        return passed / (self._mean_size * REFERENCE_EPOCHS)

    def _server_time(self, passed: Floats | float) -> Floats | float:
        """Return the time units that the server's part of a split model needs for `passed` sample passes."""
        if self._stem is None or not self._stem.server_flops:
            return 0.0
        flops = self._stem.server_flops * passed
        if self.fleet.relative:
            whole = self._stem.cost.flops + self._stem.server_flops
            flops = self._stem.server_flops / whole * self._reference_share(passed)
        return flops / self._server

    def flops(self, widths: Widths, client: int, steps: int | None = None) -> float:
        """Return the client's FLOPs for one task, or for its first `steps` local steps."""
        return self._trained_cost(widths).flops * self.sample_passes(widths, client, steps)

    def count_steps(self, widths: Widths, client: int) -> int:
        """Return the number of local steps of one whole task."""
        return self.steps(widths, client) or self._local.count_steps(int(self._sizes[client]))

    def path_length(self, lr: float, steps: int) -> float:
        """Return the length of a path of `steps` local steps with the mean rate `lr` and gradients of length 1."""
        return self._local.path_length(lr, steps)

    def samples(self, widths: Widths, client: int, steps: int | None = None) -> float:
        """Return the number of training samples in one task, or in its first `steps` local steps."""
        steps = steps or self.steps(widths, client)
        shard = int(self._sizes[client])
        if steps is None:
            return float(self._local.count_samples(shard))
        return float(self._local.samples_of_steps(steps, shard))

    def steps(self, widths: Widths, client: int) -> int | None:
        """Return how many local steps the setting `auto` gives to one task; None without this setting."""
        if self._local.auto is None:
            return None
        task = (widths, client)
        if task not in self._known_steps:
            if len(self._known_steps) == MAX_KNOWN_STEPS:
                self._known_steps.clear()
            self._known_steps[task] = int(self._auto_steps(self._local.auto, widths, np.array([client]))[0])
        return self._known_steps[task]

    def step_rates(self, shapes: Sequence[Widths], table: Floats) -> Floats:
        """Return each client's local steps per time unit [N], as the mean over the submodels that fit its memory.

        Args:
            shapes: The widths of the M submodels.
            table: The time from the start of a client's task to the start of its next one, by submodel [N, M].
        """
        held = np.isfinite(table)
        return np.asarray((self.all_steps(shapes) / table).sum(axis=1) / np.maximum(1, held.sum(axis=1)))

    def all_steps(self, shapes: Sequence[Widths]) -> Floats:
        """Return the number of local steps of one task for every client and submodel, [N, M]."""
        auto = self._local.auto
        if auto is None:
            return np.repeat(self._map_sizes(self._local.count_steps)[:, None], len(shapes), axis=1)
        clients = np.arange(len(self._sizes))
        return np.stack([self._auto_steps(auto, widths, clients) for widths in shapes], axis=1).astype(np.float64)

    def sent(self, widths: Widths) -> int:
        """Return the uncompressed bytes of one transfer of a submodel. Personal layers are not sent."""
        cost = self._trained_cost(widths)
        return cost.bytes - FLOAT32_BYTES * cost.personal

    def activation_bytes(self, passed: Floats | float) -> Floats | float:
        """Return the bytes of activations that the client of a split model sends in `passed` sample passes.

        The client receives gradients of the same size. Without a split, the result is 0.
        """
        if self._stem is None:
            return 0.0
        return FLOAT32_BYTES * self._stem.activations * passed

    def table(self, shapes: Sequence[Widths]) -> Floats:
        """Return the table c [N, M]. Entry c[n, j] is the expected duration of one task of client n on submodel j.

        The modelled duration is scaled by the client's observed durations. An entry is infinite if the submodel does
        not fit in the client's memory. Masks and links that change with time are not considered.
        """
        columns = []
        for widths in shapes:
            passed = self._all_sample_passes(widths)
            down, up = self.moved_bytes(widths)
            activations = self.activation_bytes(passed)
            load = self.load(widths, passed, down + activations, up + activations)
            columns.append(
                np.where(self.fleet.fits_memory(load), self.fleet.cost(load) + self._server_time(passed), np.inf)
            )
        table = np.stack(columns, axis=1) * self._unit
        for client in self._ratios:
            table[client] *= self._duration_ratio(client)
        return table

    def expected_durations(self, shapes: Sequence[Widths]) -> Floats:
        """Return the expected duration of one task of every client [N].

        It is the mean over the submodels of these widths that fit in the client's memory. Without widths, it is that of
        the full model. A client without such a submodel gets the longest duration of the other clients.
        """
        table = self.table(shapes or [self._full_widths])
        held = np.isfinite(table)
        durations = np.where(held, table, 0.0).sum(axis=1) / np.maximum(1, held.sum(axis=1))
        durations[~held.any(axis=1)] = durations.max()
        return np.asarray(durations)

    def observe(self, widths: Widths, client: int, real: float, seconds: float = 0.0) -> bool:
        """Record the observed duration of a task. Return True if the table of costs has changed.

        The client's row in the table is scaled by the median of its last `DURATION_WINDOW` ratios of observed to
        modelled durations. In this ratio, the modelled duration is never smaller than the real time that the fastest
        recent worker would need. So a slow worker does not make the device look slow. With more than
        `MAX_FIRST_TABLES` clients, the table changes only after several observations.

        Args:
            widths: The widths of the submodel.
            client: The client.
            real: The observed duration on the run's clock.
            seconds: The real time in seconds that the worker needed.
        """
        passes = self.sample_passes(widths, client)
        self._paces.append(seconds / passes)
        del self._paces[:-PACE_WINDOW]
        modelled = max(self.cost(widths, client, *self.moved_bytes(widths)).duration, passes * min(self._paces))
        self._fresh.append((client, real / modelled))
        if len(self._fresh) < -(-len(self._sizes) // MAX_FIRST_TABLES):
            return False
        for observed, ratio in self._fresh:
            ratios = self._ratios.setdefault(observed, [])
            ratios.append(ratio)
            del ratios[:-DURATION_WINDOW]
        self._fresh.clear()
        return True

    def sample_passes(self, widths: Widths, client: int, steps: int | None = None) -> float:
        """Return the number of sample passes (forward, backward) in one task, or in its first `steps` local steps."""
        steps = steps or self.steps(widths, client)
        shard = int(self._sizes[client])
        if steps is None:
            return self._local.count_sample_passes(shard)
        return float(self._local.sample_passes_of_steps(steps, shard))

    def _all_sample_passes(self, widths: Widths) -> Floats:
        """Return the number of sample passes (forward, backward) in one task of every client, [N]."""
        auto = self._local.auto
        if auto is None:
            return self._map_sizes(self._local.count_sample_passes)
        steps = self._auto_steps(auto, widths, np.arange(len(self._sizes)))
        return self._local.sample_passes_of_steps(steps, self._sizes)

    def _map_sizes(self, function: Callable[[int], float]) -> Floats:
        """Return `function(number of samples)` of every client, [N].

        The function is called once for each distinct number of samples.
        """
        sizes, shard = np.unique(self._sizes, return_inverse=True)
        return np.array([function(int(size)) for size in sizes], np.float64)[shard]

    def _auto_steps(self, auto: AutoSteps, widths: Widths, clients: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of local steps that `auto` computes from the costs for one task of each client [n]."""
        shards = self._sizes[clients]
        batch = self._local.samples_of_steps(1, shards) * self._local.passes
        move = self.fleet.cost(self.load(widths, 0.0, *self.moved_bytes(widths)), clients)
        start = self.fleet.cost(Load(0.0, 0.0, 0.0), clients)
        step = self.fleet.cost(self.load(widths, batch, 0.0, 0.0), clients) - start
        whole = self._local.count_minibatches(shards)
        return auto.count(move, step, whole, self._label_overlap, shards / self._mean_size)

    def _trained_cost(self, widths: Widths) -> Cost:
        """Return the cost of a submodel. For a split model, return the cost of the client's part."""
        if self._stem is not None:
            return self._stem.cost
        return self._measure(widths)

    def moved_bytes(self, widths: Widths) -> tuple[int, int]:
        """Return the bytes that a client receives and sends for a submodel without a mask, after compression.

        They include the method's extra buffers, which are never compressed. They do not include activations, and the
        squared gradients that PruneFL sends in some rounds.
        """
        sent = self.sent(widths)
        extra = self._extra_buffers
        down = wire_bytes(self.download, sent // FLOAT32_BYTES) + extra.down * sent
        up = wire_bytes(self.compressor, sent // FLOAT32_BYTES) + (extra.up + extra.up_whole) * sent
        return down, up

    def _duration_ratio(self, client: int) -> float:
        """Return the median ratio of the client's observed to modelled durations; 1 without observations."""
        return float(np.median(self._ratios.get(client, [1.0])))
