"""The cost of a run before it starts: costs, delay bound, feasible sets, memory and expected time."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from fedraa.cli.display import say, show
from fedraa.cli.plan_data import show_data
from fedraa.components.text import is_foreign, text_of
from fedraa.config.experiment import Experiment
from fedraa.devices.costs import BYTES
from fedraa.devices.fleet import Fleet, Floats
from fedraa.engine.build import build
from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.forecast import dry_run
from fedraa.engine.run_spec import RunSpec
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.bad_clients import BadClients
from fedraa.ledger.dispatch import Dispatch
from fedraa.messages import Task
from fedraa.numbers import quantity
from fedraa.server.async_rule import AsyncModel, AsyncRule
from fedraa.server.participation_correction import planned_balances
from fedraa.server.schedule import SCHEDULER
from fedraa.submodels.flat import frozen
from fedraa.submodels.indices import owners, too_small
from fedraa.waiting import Waiting
from schedulers import SchedulerRunner

Ints = npt.NDArray[np.int64]

# Maximum number of device classes, or submodel shapes, that are shown one by one.
MOST_CLASSES = 12
# Number of groups, from fast to slow, if there are more device classes.
GROUPS = 10
# Maximum number of factors whose weights are computed.
MOST_FACTORS = 1000
# Maximum number of widths that are shown for a submodel.
MOST_WIDTHS = 6
# Largest number of clients that are simulated one by one. Larger runs are represented by this many clients.
MOST = 20_000
# Updates of a dry run. A longer run is extrapolated from the rate.
DRY_STEPS = 20_000


def plan(experiment: Experiment, data: Path | None = None, waiting: Waiting | None = None) -> None:
    """Print the cost of the experiment. Raises ValueError, as `run` would, if it cannot run.

    With the folder `data`, the data partition is shown as well.

    Args:
        experiment: The experiment.
        data: A folder for a picture of the data partition; None for no picture.
        waiting: The status line of slow preparations.
    """
    if waiting is None:
        spec = build(experiment)
    else:
        spec = build(experiment, doing=waiting.say)
        waiting.over()
    if data is not None:
        show_data(spec, data)
    schedule, tasks = spec.method.schedule, list[Task]()
    if not schedule.scheduled:
        tasks, of = first_round(spec)
        show(shapes_table(spec, tasks, of))
        show(devices_table(spec.fleet, {"task": round_costs(spec, tasks)}))
        outlook = drawn_outlook(spec, tasks, of) if schedule.asynchronous else rounds_outlook(spec, tasks, of)
    else:
        costs = make_cost_model(spec).table([part.widths for part in spec.submodels])
        planner = SchedulerRunner(SCHEDULER.own(schedule.scheduler))
        planner.plan(costs, schedule.delay_bound)
        show(fragments_table(spec))
        for line in whole_groups(spec):
            say(line)
        show(devices_table(spec.fleet, {f"fragment {j}": column for j, column in enumerate(costs.T)}, planner))
        whence = "K*, from the costs" if schedule.delay_bound is None else "as given"
        say(f"delay bound    {planner.bound:.4g} ({whence})")
        outlook = async_outlook(spec, planner) if schedule.asynchronous else rounds_outlook(spec, *first_round(spec))
    for line in (*base_lines(spec, tasks), *task_lines(spec)):
        say(line)
    say(f"server memory  about {quantity(server_bytes(spec), 'B')}")
    if each := client_bytes(spec):
        say(f"per client     {quantity(each, 'B')} of that for each that appears, of whom there are {spec.appearing}")
    say(f"expected       {outlook}")
    for name, part in own_parts(experiment.model_dump(mode="json")):
        say(f"own part       {name} {part}")


def whole_groups(spec: RunSpec) -> list[str]:
    """Return a line about the groups of units that are whole in every fragment because they are small."""
    groups = too_small(spec.traced, spec.index_sets)
    names = ", ".join(f"{group.name} ({group.size} units)" for group in groups[:MOST_WIDTHS])
    more = f" and {len(groups) - MOST_WIDTHS} more" if len(groups) > MOST_WIDTHS else ""
    return [f"stays whole    {names}{more}: too few units for {len(spec.index_sets)} fragments"] if groups else []


def task_lines(spec: RunSpec) -> list[str]:
    """Return lines about local steps and update weights, if they follow from the devices."""
    costs, update, shapes = make_cost_model(spec), spec.method.update, [part.widths for part in spec.submodels]
    lines = []
    if spec.method.local.auto is not None:
        steps = costs.all_steps(shapes)
        lines.append(f"local steps    {_range(steps)} a task ({spec.method.local.steps})")
    if isinstance(update, AsyncRule) and update.is_convex_mix:
        rule = update.bind(AsyncModel(spec.params, len(spec.fleet), len(shapes), spec.at_a_time))
        factors = planned_balances(costs, shapes, spec.data.sizes, update.participation_correction, spec.at_a_time)
        weights = np.array([rule.weight(0, float(factor)) for factor in _some(np.unique(factors))])
        lines.append(f"weights        {_range(weights)} of an arrival that is not stale")
    return lines


def base_lines(spec: RunSpec, tasks: Sequence[Task]) -> list[str]:
    """Return lines about the frozen parameters, which are never sent, and about the bytes that tasks send back."""
    still = frozen(spec.traced.module)
    if not still:
        return []
    held = quantity(sum(p.numel() * p.element_size() for p in still), "B")
    lines = [f"frozen         {sum(p.numel() for p in still)} parameters, {held} on every worker, in no task"]
    if tasks:
        low, high = (quantity(some(task.bytes_up for task in tasks), "B") for some in (min, max))
        lines.append(f"sent back      {low if low == high else f'{low} to {high}'} a task")
    return lines


def own_parts(written: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the field and the text of each user-defined component in a written experiment."""
    several = [(name, value if isinstance(value, list) else [value]) for name, value in written.items()]
    return [(name, str(part)) for name, parts in several for part in parts if is_foreign(part)]


def fragments_table(spec: RunSpec) -> Table:
    """Return a table of the fragments, or the full model: widths, parameters and the cost of training each."""
    owned = owners(spec.traced, spec.index_sets)
    never = int((owned == 0).sum())
    title = f"{text_of(spec.experiment.model)}: {spec.traced.size} parameters, {never} of them never trained"
    table = _shapes(title, "fragment", "owned", "shared")
    for number, part in enumerate(spec.submodels):
        holders = owned if part.index is None else owned[part.index]
        once, more = int((holders == 1).sum()), int((holders > 1).sum())
        table.add_row(str(number), *_shape(spec, part.widths), str(once), str(more))
    return table


def shapes_table(spec: RunSpec, tasks: Sequence[Task], of: int) -> Table:
    """Return a table of the submodel shapes of a first round, the commonest first, with the cost of training each.

    Args:
        spec: The run.
        tasks: The tasks of a first round, or a sample of them.
        of: The number of tasks of that round.
    """
    shapes = Counter(task.widths for task in tasks)
    trained = {task.widths: 1.0 if task.mask is None else float(task.mask.mean()) for task in tasks}
    shown = shapes.most_common(MOST_CLASSES)
    title = f"{text_of(spec.experiment.model)}: {spec.traced.size} parameters; submodels of the first round"
    if len(tasks) < of:
        title += f", {len(tasks)} of {of} clients"
    if len(shown) < len(shapes):
        title += f", {len(shown)} of {len(shapes)} shapes"
    table = _shapes(title, "clients", "unmasked")
    for widths, clients in shown:
        table.add_row(str(clients), *_shape(spec, widths), f"{trained[widths]:.0%}")
    return table


def _shapes(title: str, first: str, *last: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name in (first, "widths", "parameters", "one way", "per sample", "to train it", *last):
        table.add_column(name, justify="right")
    return table


def _shape(spec: RunSpec, widths: Sequence[int]) -> list[str]:
    cost = spec.measure(tuple(widths))
    listed = " ".join(map(str, widths[:MOST_WIDTHS])) + (" …" if len(widths) > MOST_WIDTHS else "")
    return [
        listed or "–",
        str(cost.params),
        quantity(cost.bytes, "B"),
        quantity(cost.flops, "FLOP"),
        quantity(cost.memory, "B"),
    ]


def devices_table(fleet: Fleet, costs: dict[str, Floats], planner: SchedulerRunner | None = None) -> Table:
    """Return a table of task costs by device class; `costs` [N] by fragment.

    With a scheduler it shows feasible fragments.

    A range covers unequal data or devices of one class. A fragment in brackets is feasible for some clients of the
    class.

    Args:
        fleet: The devices.
        costs: The costs [N] by name of a fragment.
        planner: The scheduler's planner; None without a scheduler.
    """
    table = Table(title="cost of a task by device", box=box.SIMPLE_HEAD)
    for name in ("clients", "compute", *costs, *(["feasible", "|S|"] if planner else [])):
        table.add_column(name, justify="right")
    allowed = planner.allowed() if planner else None
    for clients in device_classes(fleet, np.stack(list(costs.values()), axis=1)):
        row = [
            str(len(clients)),
            _range(fleet.compute[clients]),
            *(_range(column[clients]) for column in costs.values()),
        ]
        if allowed is not None:
            theirs = allowed[clients]
            every = np.asarray(theirs.all(axis=0))
            row.append(" ".join(str(j) if every[j] else f"({j})" for j in np.flatnonzero(theirs.any(axis=0)).tolist()))
            row.append(_range(theirs.sum(axis=1).astype(np.float64)))
        table.add_row(*row)
    return table


def device_classes(fleet: Fleet, costs: Floats) -> list[Ints]:
    """Return the clients of each class of equal devices, or groups from fast to slow if there are many classes."""
    kind, kinds = np.zeros(len(fleet), np.int64), 1
    for column in (fleet.compute, fleet.downlink, fleet.uplink, fleet.latency, fleet.memory):
        values, place = np.unique(column, return_inverse=True)
        found, kind = np.unique(kind * len(values) + place, return_inverse=True)
        if (kinds := len(found)) > MOST_CLASSES:
            break
    if kinds <= MOST_CLASSES:
        return [np.flatnonzero(kind == number) for number in range(kinds)]
    return np.array_split(np.argsort(np.nansum(costs, axis=1), kind="stable"), GROUPS)


def round_costs(spec: RunSpec, tasks: Sequence[Task]) -> Floats:
    """Return the cost of each client's task [N]; NaN for clients without one."""
    costs = np.full(len(spec.fleet), np.nan)
    for task in tasks:
        costs[task.client] = task.cost
    return costs


def server_bytes(spec: RunSpec) -> int:
    """Return the bytes of the model, its average if kept, the update's state, and two of the largest buffers per
    client.
    """
    largest = max(spec.measure(part.widths).bytes for part in spec.submodels)
    clients = min(spec.appearing, spec.at_a_time)
    copies = 2 if spec.method.schedule.polyak_fraction else 1
    kept = spec.method.update.memory(spec.params.size, spec.appearing)
    return copies * spec.params.nbytes + kept + 2 * clients * largest


def client_bytes(spec: RunSpec) -> int:
    """Return the bytes that the update keeps for every client that takes part."""
    memory, size = spec.method.update.memory, spec.params.size
    return memory(size, spec.appearing) - memory(size, spec.appearing - 1)


def first_round(spec: RunSpec) -> tuple[list[Task], int]:
    """Return the tasks of the first round, at most `MOST` of them, and the number of clients in that round."""
    server = make_server(spec, lambda kind, t, /, **fields: None)
    clients = np.fromiter(server.begin(), np.int64)
    costs = make_cost_model(spec).table([spec.traced.widths(spec.traced.full())])[clients, 0]
    return [server.assign(client, 0.0) for client in clients[evenly(costs, MOST)].tolist()], len(clients)


def evenly(costs: Floats, most: int) -> Ints:
    """Return the positions, ascending, of `most` of the costs [N], spread evenly by rank; all if there are fewer."""
    if len(costs) <= most:
        return np.arange(len(costs))
    by_cost = np.argsort(costs, kind="stable")
    return np.sort(by_cost[np.linspace(0, len(costs) - 1, most).round().astype(np.int64)])


def async_outlook(spec: RunSpec, planner: SchedulerRunner) -> str:
    """Return the expected result of an asynchronous run within its budget, by a dry run."""
    limits = spec.limits
    rule: Any = spec.method.update
    few = np.arange(len(planner.costs)) if spec.at_a_time <= MOST else evenly(planner.costs.sum(axis=1), MOST)
    # A sample stands for this many times its clients, updates and staleness.
    times = len(planner.costs) / len(few)
    wanted = max(1, round((limits.steps or DRY_STEPS * times) / times))
    ledger = first_ledger(spec, planner.of(few))
    cost = task_cost(spec, planner.costs, few)
    dry = dry_run(ledger, rule, spec.timing, cost, steps=min(wanted, DRY_STEPS), time=limits.time)
    steps, time = dry.steps * times, dry.time
    if dry.steps == DRY_STEPS:
        rate = steps / dry.time
        steps = min(limits.steps or np.inf, np.inf if limits.time is None else rate * limits.time)
        time = steps / rate
    shares = " ".join(f"{count / max(1, sum(dry.tasks)):.0%}" for count in dry.tasks)
    by_fragment = f" ({shares} by fragment)" if len(dry.tasks) > 1 else ""
    return (
        f"{steps:.0f} updates in time {time:.4g}{by_fragment}, staleness {times * dry.staleness_mean:.2f}, "
        f"at most {times * dry.staleness_max:.0f}{_unless(spec)}{_foretold(len(few), len(planner.costs))}{_blind(spec)}"
    )


def first_ledger(spec: RunSpec, planner: SchedulerRunner) -> AsyncLedger:
    """Return the decisions of an asynchronous run of this planner's clients at its start."""
    clients, fragments = planner.costs.shape
    return AsyncLedger(
        clients=clients,
        seed=spec.experiment.seed,
        bad_clients=BadClients(),
        fragments=fragments,
        scheduler=planner,
        concurrency=spec.at_a_time if spec.at_a_time < clients else None,
    )


def task_cost(spec: RunSpec, table: Floats, clients: Ints) -> Callable[[Dispatch], float]:
    """Return the cost of a task of the n-th of these clients.

    Args:
        spec: The run.
        table: The costs of all clients on all fragments [N, M].
        clients: The clients [n].
    """
    costs, shapes = make_cost_model(spec), [part.widths for part in spec.submodels]
    up = [costs.compressor.bytes(costs.sent(widths) // BYTES) for widths in shapes]

    def cost(task: Dispatch) -> float:
        client = int(clients[task.client])
        # A client that trains its buffer again receives nothing.
        if task.resent:
            return costs.cost(shapes[task.fragment], client, 0, up[task.fragment])
        return float(table[client, task.fragment])

    return cost


def drawn_outlook(spec: RunSpec, tasks: Sequence[Task], of: int) -> str:
    """Return the expected result of a run with sampled tasks, if all tasks are like the first of each client.

    Args:
        spec: The run.
        tasks: The first task of each client, or of a sample of the clients.
        of: The number of clients.
    """
    limits, rate = spec.limits, sum(1 / task.cost for task in tasks) / spec.method.update.per_step * of / len(tasks)
    steps = min(limits.steps or np.inf, np.inf if limits.time is None else rate * limits.time)
    all_alike = f"if all tasks are like the first{_unless(spec)}{_foretold(len(tasks), of)}"
    return f"{steps:.0f} updates in time {steps / rate:.4g}, {all_alike}"


def rounds_outlook(spec: RunSpec, tasks: Sequence[Task], of: int) -> str:
    """Return the expected result of a run in rounds, if all rounds are like the first.

    Args:
        spec: The run.
        tasks: The tasks of the first round, or a sample of them.
        of: The number of tasks of that round.
    """
    limits = spec.limits
    longest = max(task.cost for task in tasks)
    steps = np.inf if limits.steps is None else limits.steps
    if limits.time is not None:
        steps = min(steps, limits.time // longest)
    time = steps * longest
    all_alike = f"if they are like the first{_unless(spec)}{_foretold(len(tasks), of)}"
    return f"{steps:.0f} rounds of {longest:.4g} in time {time:.4g}, {all_alike}"


def _unless(spec: RunSpec) -> str:
    goal = spec.limits.goal
    return "" if goal is None else f", unless {goal} is reached before"


def _blind(spec: RunSpec) -> str:
    """Return a note that a user-defined scheduler may choose other fragments when losses are known."""
    own = is_foreign(spec.experiment.model_dump(mode="json")["scheduler"])
    return "; a scheduler that looks at losses, of which none is known yet, will choose otherwise" if own else ""


def _foretold(seen: int, of: int) -> str:
    """Return a note that a sample of `seen` clients stands for all; empty if it is all of them."""
    return f", as {seen} of the {of} clients foretell" if seen < of else ""


def _some(ascending: Floats) -> Floats:
    """Return at most `MOST_FACTORS` values, evenly from the first to the last."""
    few = min(len(ascending), MOST_FACTORS)
    return ascending[np.linspace(0, len(ascending) - 1, few).round().astype(np.int64)]


def _range(values: Floats) -> str:
    """Return `0.2`, or `0.1–0.2` for unequal values; `–` if there is none, or if no device can hold the submodel."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "–"
    low, high = (f"{value:.3g}" for value in (finite.min(), finite.max()))
    return low if low == high else f"{low}–{high}"
