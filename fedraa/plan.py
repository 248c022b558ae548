"""What a run will take, before it is run: costs, delay bound, feasible sets, memory, time to expect."""

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from fedraa.assembly import Assembly, assemble
from fedraa.display import quantity, say, show
from fedraa.experiment import Experiment
from fedraa.fleet import Fleet, Floats, jitter_factor
from fedraa.streams import generator
from fedraa.submodels.indices import owners
from schedulers import SCHEDULERS, Scheduler, delay_bound

Ints = npt.NDArray[np.int64]

MOST_CLASSES = 12  # of devices, that are shown one by one
GROUPS = 10  # that more of them are put into, from fast to slow
DRY_STEPS = 20_000  # updates of a dry run; what is beyond follows from the rate


@dataclass(frozen=True)
class Forecast:
    """A run of the schedule without training: `time` on the run's clock after `steps` updates.

    `counts` are the updates per fragment; staleness is on the fragments' own versions.
    """

    time: float
    steps: int
    counts: tuple[int, ...]
    staleness_mean: float
    staleness_max: int


def plan(experiment: Experiment) -> None:
    """Print what the experiment will take; ValueError, as `run` would raise it, if it cannot be run."""
    assembly = assemble(experiment)
    costs = assembly.costs().table([part.widths for part in assembly.parts])
    schedule = assembly.method.schedule
    bound = delay_bound(costs) if schedule.delay_bound is None else schedule.delay_bound
    scheduler = SCHEDULERS[schedule.scheduler](costs, bound)
    show(parts_table(assembly))
    show(devices_table(assembly.fleet, costs, scheduler))
    origin = "K*, from the costs" if schedule.delay_bound is None else "as given"
    say(f"delay bound    {bound:.4g} ({origin})")
    say(f"server memory  {quantity(server_bytes(assembly), 'B')} at most, all clients in flight")
    say(f"expected       {outlook(assembly, costs, scheduler)}")


def parts_table(assembly: Assembly) -> Table:
    """The fragments, or the full model: widths, parameters and what training one takes."""
    owned = owners(assembly.traced, assembly.index_sets)
    never = int((owned == 0).sum())
    title = f"{assembly.experiment.model}: {assembly.traced.size} parameters, {never} of them never trained"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name in ("fragment", "widths", "parameters", "owned", "shared", "one way", "per sample", "to train it"):
        table.add_column(name, justify="right")
    for number, part in enumerate(assembly.parts):
        cost = assembly.shapes[part.widths]
        holders = owned if part.index is None else owned[part.index]
        table.add_row(
            str(number),
            " ".join(map(str, part.widths)) or "–",
            str(cost.params),
            str(int((holders == 1).sum())),
            str(int((holders > 1).sum())),
            quantity(cost.bytes, "B"),
            quantity(cost.flops, "FLOP"),
            quantity(cost.memory, "B"),
        )
    return table


def devices_table(fleet: Fleet, costs: Floats, scheduler: Scheduler) -> Table:
    """What a task costs each class of devices, and which fragments are within the delay bound.

    A range covers unequal data or devices of one class; a fragment in brackets is feasible for some of them.
    """
    table = Table(title="cost of a task by device and fragment", box=box.SIMPLE_HEAD)
    for name in ("clients", "compute", *map(str, range(costs.shape[1])), "feasible", "|S|"):
        table.add_column(name, justify="right")
    for clients in device_classes(fleet, costs):
        sets = [scheduler.feasible(client).tolist() for client in clients.tolist()]
        every = set.intersection(*map(set, sets))
        some = sorted(set.union(*map(set, sets)))
        table.add_row(
            str(len(clients)),
            _range(fleet.compute[clients]),
            *(_range(costs[clients, fragment]) for fragment in range(costs.shape[1])),
            " ".join(str(j) if j in every else f"({j})" for j in some),
            _range(np.array([len(feasible) for feasible in sets], np.float64)),
        )
    return table


def device_classes(fleet: Fleet, costs: Floats) -> list[Ints]:
    """The clients of each class of equal devices; where there are many classes, groups from fast to slow."""
    rows = np.stack([fleet.compute, fleet.downlink, fleet.uplink, fleet.latency, fleet.memory], axis=1)
    kinds, kind = np.unique(rows, axis=0, return_inverse=True)
    if len(kinds) <= MOST_CLASSES:
        return [np.flatnonzero(kind.ravel() == number) for number in range(len(kinds))]
    return np.array_split(np.argsort(costs.sum(axis=1), kind="stable"), GROUPS)


def server_bytes(assembly: Assembly) -> int:
    """The model, and for every client a buffer sent and a buffer returned, each of the largest part."""
    largest = max(assembly.shapes[part.widths].bytes for part in assembly.parts)
    return assembly.params.nbytes + 2 * len(assembly.fleet) * largest


def outlook(assembly: Assembly, costs: Floats, scheduler: Scheduler) -> str:
    """What the budget will come to, in words."""
    limits, experiment = assembly.limits, assembly.experiment
    unless = "" if limits.accuracy is None else f", unless accuracy {limits.accuracy:g} is reached before"
    if not assembly.method.asynchronous:
        longest = max(costs[client, scheduler.feasible(client)].max() for client in range(len(costs)))
        longest *= 1 + experiment.jitter
        if limits.steps is None:
            return f"at least {int((limits.time or 0) / longest)} rounds in time {limits.time:g}{unless}"
        return f"{limits.steps} rounds in time {limits.steps * longest:.4g} at most{unless}"
    steps = min(limits.steps or DRY_STEPS, DRY_STEPS)
    dry = dry_run(costs, scheduler, experiment.jitter, experiment.seed, steps, limits.time)
    rate = dry.steps / dry.time
    updates = min(limits.steps or np.inf, np.inf if limits.time is None else rate * limits.time)
    shares = " ".join(f"{count / dry.steps:.0%}" for count in dry.counts)
    return (
        f"{updates:.0f} updates in time {updates / rate:.4g} ({shares} by fragment), "
        f"staleness {dry.staleness_mean:.2f}, at most {dry.staleness_max}{unless}"
    )


def dry_run(
    costs: Floats, scheduler: Scheduler, jitter: float, seed: int, steps: int, time: float | None = None
) -> Forecast:
    """An asynchronous run by its costs alone, with the very draws that the real one on the virtual clock makes."""
    clients, fragments = costs.shape
    counts = np.zeros(fragments, np.int64)
    turns = np.zeros(clients, np.int64)
    due: list[tuple[float, int, int, int, int]] = []
    staleness: list[int] = []
    now = 0.0

    def dispatch(client: int) -> None:
        turn = int(turns[client])
        j = scheduler.choose(client, turn, counts, generator(seed, "schedule", client, turn))
        end = now + costs[client, j] * jitter_factor(seed, jitter, client, turn)
        heapq.heappush(due, (end, int(turns.sum()), client, j, int(counts[j])))
        turns[client] += 1

    for client in range(clients):
        dispatch(client)
    while len(staleness) < steps and (time is None or not staleness or due[0][0] <= time):
        now, _, client, j, version = heapq.heappop(due)
        staleness.append(int(counts[j]) - version)
        counts[j] += 1
        dispatch(client)
    return Forecast(now, len(staleness), tuple(counts.tolist()), float(np.mean(staleness)), max(staleness))


def _range(values: Floats) -> str:
    """`0.2`, or `0.1–0.2` where they differ; `–` for what no device can hold."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "–"
    low, high = (f"{value:.3g}" for value in (finite.min(), finite.max()))
    return low if low == high else f"{low}–{high}"
