"""The output of `fedraa plan`: task costs, delay bound, feasible fragments, memory and expected time of a run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from fedraa.cli.console import print_line, print_table
from fedraa.cli.plan_cluster import cluster_lines
from fedraa.cli.plan_data import show_data
from fedraa.cli.plan_outlook import async_outlook, draw_sampled, sampled_outlook
from fedraa.cli.plan_privacy import privacy_lines
from fedraa.cli.plan_rounds import draw_rounds, rounds_outlook
from fedraa.cli.plan_tasks import Totals, spread_by_rank
from fedraa.components.text import is_foreign, text_of
from fedraa.config.experiment import Experiment
from fedraa.devices.fleet import Fleet
from fedraa.engine.build import build_run
from fedraa.engine.factories import bind_rule, make_cost_model, make_planner
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Floats, Task
from fedraa.numbers import format_count, format_quantity
from fedraa.server.async_rule import AsyncRule
from fedraa.server.participation_correction import planned_balances
from fedraa.submodels.flat import frozen_parameters
from fedraa.submodels.indices import count_owners, too_small
from fedraa.submodels.policies.slices import TOO_FEW_UNITS
from fedraa.waiting import Waiting
from schedulers import SchedulerRunner

Ints = npt.NDArray[np.int64]

# Maximum number of rows in the table of device classes, and in the table of submodel shapes.
MAX_CLASSES = 12
# If there are more than `MAX_CLASSES` device classes, the table has this number of groups of clients instead.
GROUPS = 10
# The update weights of a client depend on its participation correction. If the clients have more different
# corrections than this number, the printed range of update weights is computed from a sample of the corrections.
MAX_FACTORS = 1000
# Maximum number of width groups (layers with a common width) in a table.
MAX_WIDTHS = 6


def show_plan(
    experiment: Experiment,
    data: Path | None = None,
    waiting: Waiting | None = None,
    epsilon: float | None = None,
    *,
    nodes: int | None = None,
) -> None:
    """Print the costs of a run without running it.

    Args:
        experiment: The options of the run.
        data: A folder. A picture of the data partition is written there, and a table is printed; None for neither.
        waiting: The status line that shows slow preparations; None to show none.
        epsilon: A privacy budget. The noise that it needs is printed; None to print no noise.
        nodes: The number of nodes of a cluster. Their memory and traffic are printed; None to print neither.

    Raises the ValueError of the run if the run is not possible.
    """
    spec = build_run(experiment) if waiting is None else build_run(experiment, doing=waiting.say)
    # These lines are computed first, because they can raise an error about the options.
    last_lines = [*cluster_lines(spec, nodes), *privacy_lines(spec, epsilon)]
    if waiting is not None:
        waiting.end_display()
    if data is not None:
        show_data(spec, data)
    schedule = spec.method.schedule
    tasks: list[Task] = []
    energies: list[float] = []

    totals: Totals | None
    if not schedule.scheduled:
        rounds, tasks = draw_sampled(spec) if schedule.asynchronous else draw_rounds(spec)
        first = next(part for part in rounds if part.total)
        energies = first.energies.tolist()
        print_table(shapes_table(spec, tasks, first.total))
        print_table(devices_table(spec.fleet, {"task": round_costs(spec, tasks)}))
        outlook, totals = (sampled_outlook if schedule.asynchronous else rounds_outlook)(spec, rounds)
    else:
        planner = make_planner(spec)
        print_table(fragments_table(spec))
        for line in describe_uncut_groups(spec):
            print_line(line)
        columns = {f"fragment {j}": column for j, column in enumerate(planner.costs.T)}
        print_table(devices_table(spec.fleet, columns, planner))
        source = "from the option delay_bound"
        if schedule.delay_bound is None:
            source = "K* of the Fed-RAA paper, from the costs in the table"
        print_line(f"delay bound    {planner.bound:.4g}{spec.fleet.unit} ({source})")
        energies = task_energies(spec, planner.costs)
        if schedule.asynchronous:
            outlook, totals = async_outlook(spec, planner)
        else:
            outlook, totals = rounds_outlook(spec, draw_rounds(spec)[0])
    for line in (*describe_frozen_base(spec, tasks), *describe_tasks(spec)):
        print_line(line)
    if energies:
        print_line(f"energy         {_range_text(np.array(energies))} J a task ({', '.join(spec.fleet.watts)})")
    print_line(f"server memory  about {format_quantity(server_bytes(spec), 'B')}")
    per_client = client_bytes(spec)
    if per_client:
        clients = f"each of the {spec.max_participants} clients that take part"
        print_line(f"per client     {format_quantity(per_client, 'B')} of the server memory for {clients}")
    print_line(f"expected       {outlook}")
    if totals is not None:
        print_line(f"in total       {describe_totals(totals)}")
    for line in last_lines:
        print_line(line)
    for name, part in custom_components(experiment.model_dump(mode="json")):
        print_line(f"component      {name} {part}")


def describe_totals(totals: Totals) -> str:
    """Return the traffic of a run as text, and its energy if it is known."""
    text = f"{format_quantity(totals.down, 'B')} down, {format_quantity(totals.up, 'B')} up"
    if totals.energy is not None:
        text += f", {format_quantity(totals.energy, 'J')}"
    return text


def describe_uncut_groups(spec: RunSpec) -> list[str]:
    """Return a line about layers too small to be divided among fragments; no line if there are none."""
    layers = [name for name, reason in spec.traced.uncut.items() if TOO_FEW_UNITS in reason]
    layers += [
        f"{group.name} ({format_count(group.size, 'unit')})" for group in too_small(spec.traced, spec.index_sets)
    ]
    names = ", ".join(layers[:MAX_WIDTHS])
    if not layers:
        return []
    if len(layers) > MAX_WIDTHS:
        names += f" and {len(layers) - MAX_WIDTHS} more"
    return [f"stays whole    {names}: too few units for {len(spec.index_sets)} fragments"]


def describe_tasks(spec: RunSpec) -> list[str]:
    """Return lines about numbers that may depend on the devices: the local steps and the update weights."""
    costs = make_cost_model(spec)
    update = spec.method.update
    shapes = [submodel.widths for submodel in spec.submodels]
    lines = []
    if spec.method.local.auto is not None:
        steps = costs.all_steps(shapes)
        lines.append(f"local steps    {_range_text(steps)} a task ({spec.method.local.steps})")
    if isinstance(update, AsyncRule) and update.mixing_formula:
        rule = bind_rule(spec)
        factors = planned_balances(costs, shapes, spec.data.sizes, update.participation_correction, spec.at_a_time)
        weights = np.array([rule.weight(0, float(factor)) for factor in _sample_values(np.unique(factors))])
        lines.append(f"weights        {_range_text(weights)} of an update that is not stale")
    return lines


def task_energies(spec: RunSpec, table: Floats) -> list[float]:
    """Return a task's joules for each client and each fragment that fits in its memory.

    If there are many clients, a sample of them is used. The list is empty if the devices have no watts. `table` has the
    cost of each client on each fragment [N, M], which is infinite if the fragment does not fit in the memory.
    """
    costs = make_cost_model(spec)
    shapes = [submodel.widths for submodel in spec.submodels]
    energies = []
    for client in spread_by_rank(table[:, 0]).tolist():
        for fragment in np.flatnonzero(np.isfinite(table[client])).tolist():
            widths = shapes[fragment]
            energy = costs.cost(widths, client, *costs.moved_bytes(widths)).energy
            if energy is None:
                return []
            energies.append(energy)
    return energies


def describe_frozen_base(spec: RunSpec, tasks: Sequence[Task]) -> list[str]:
    """Return lines about frozen parameters, which are never sent; none without frozen parameters."""
    parameters = frozen_parameters(spec.traced.module)
    if not parameters:
        return []
    size = format_quantity(sum(p.numel() * p.element_size() for p in parameters), "B")
    count = sum(p.numel() for p in parameters)
    lines = [f"frozen         {count} parameters, {size}; every worker has them, no task sends them"]
    if tasks:
        sent = [task.bytes_up for task in tasks]
        sizes = [format_quantity(size_up, "B") for size_up in (min(sent), max(sent))]
        lines.append(f"sent back      {' to '.join(dict.fromkeys(sizes))} a task")
    return lines


def custom_components(written: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the option and the value of each custom component in an experiment's fields."""
    rows = []
    for name, value in written.items():
        values = value if isinstance(value, list) else [value]
        rows += [(name, str(component)) for component in values if is_foreign(component)]
    return rows


def fragments_table(spec: RunSpec) -> Table:
    """Return a table of the fragments (or of the full model) with their widths, parameters and training costs."""
    owned = count_owners(spec.traced, spec.index_sets)
    never = int((owned == 0).sum())
    title = f"{text_of(spec.experiment.model)}: {spec.traced.size} parameters, {never} of them never trained"
    table = _new_shapes_table(title, "fragment", "owned", "shared")
    for number, part in enumerate(spec.submodels):
        holders = owned if part.index is None else owned[part.index]
        owned_count = int((holders == 1).sum())
        shared_count = int((holders > 1).sum())
        table.add_row(str(number), *_shape_cells(spec, part.widths), str(owned_count), str(shared_count))
    return table


def shapes_table(spec: RunSpec, tasks: Sequence[Task], total: int) -> Table:
    """Return a table of the submodels in the first round, the most frequent first.

    Args:
        spec: The run.
        tasks: The tasks of the first round, or a sample of them.
        total: The number of all tasks of the first round.
    """
    shapes = Counter((task.widths, _trainable_percentage(task)) for task in tasks)
    shown = shapes.most_common(MAX_CLASSES)
    title = f"{text_of(spec.experiment.model)}: {spec.traced.size} parameters; submodels of the first round"
    if len(tasks) < total:
        title += f", {len(tasks)} of {total} clients"
    if len(shown) < len(shapes):
        title += f", {len(shown)} of {len(shapes)} shapes"
    table = _new_shapes_table(title, "clients", "unmasked")
    for (widths, unmasked), clients in shown:
        table.add_row(str(clients), *_shape_cells(spec, widths), unmasked)
    return table


def _trainable_percentage(task: Task) -> str:
    if task.mask is None:
        return "100%"
    return f"{task.mask.mean():.0%}"


def _new_shapes_table(title: str, first: str, *last: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for name in (first, "widths", "parameters", "one way", "per sample", "to train it", *last):
        table.add_column(name, justify="right")
    return table


def _shape_cells(spec: RunSpec, widths: Sequence[int]) -> list[str]:
    cost = spec.measure(tuple(widths))
    shown = " ".join(map(str, widths[:MAX_WIDTHS])) or "–"
    if len(widths) > MAX_WIDTHS:
        shown += " …"
    return [
        shown,
        str(cost.params),
        format_quantity(cost.bytes, "B"),
        format_quantity(cost.flops, "FLOP"),
        format_quantity(cost.memory, "B"),
    ]


def devices_table(fleet: Fleet, costs: dict[str, Floats], planner: SchedulerRunner | None = None) -> Table:
    """Return a table of task costs by device class, with the feasible fragments.

    A range means that clients of a class have unequal costs. A fragment in brackets is feasible only for some of them.

    Args:
        fleet: The devices.
        costs: The cost of each client [N], by the heading of a column, such as a fragment's name.
        planner: The scheduler with its delay bound; None for a method without a scheduler.
    """
    title = "cost of a task by device" if fleet.relative else "cost of a task in s"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    columns = ["clients", "compute", *costs]
    allowed = None
    if planner is not None:
        columns += ["feasible", "|S|"]
        allowed = planner.feasible_mask()
    for column_name in columns:
        table.add_column(column_name, justify="right")
    for clients in device_classes(fleet, np.stack(list(costs.values()), axis=1)):
        row = [
            str(len(clients)),
            _range_text(fleet.compute[clients]),
            *(_range_text(column[clients]) for column in costs.values()),
        ]
        if allowed is not None:
            feasible = allowed[clients]
            of_all = np.asarray(feasible.all(axis=0))
            row.append(
                " ".join(str(j) if of_all[j] else f"({j})" for j in np.flatnonzero(feasible.any(axis=0)).tolist())
            )
            row.append(_range_text(feasible.sum(axis=1).astype(np.float64)))
        table.add_row(*row)
    return table


def device_classes(fleet: Fleet, costs: Floats) -> list[Ints]:
    """Return the clients of each device class. A class is a group of equal devices.

    If there are more than `MAX_CLASSES` classes, return `GROUPS` groups of clients instead, from fast to slow.
    """
    # The device class of each client [N]. Each property of the devices divides the device classes further.
    class_of = np.zeros(len(fleet), np.int64)
    classes = class_of[:1]
    for column in (fleet.compute, fleet.downlink, fleet.uplink, fleet.latency, fleet.memory):
        values, place = np.unique(column, return_inverse=True)
        classes, class_of = np.unique(class_of * len(values) + place, return_inverse=True)
        if len(classes) > MAX_CLASSES:
            break
    if len(classes) <= MAX_CLASSES:
        return [np.flatnonzero(class_of == number) for number in range(len(classes))]
    return np.array_split(np.argsort(np.nansum(costs, axis=1), kind="stable"), GROUPS)


def round_costs(spec: RunSpec, tasks: Sequence[Task]) -> Floats:
    """Return the cost of each client's task [N]; NaN for clients without a task in the first round."""
    costs = np.full(len(spec.fleet), np.nan)
    for task in tasks:
        costs[task.client] = task.cost
    return costs


def server_bytes(spec: RunSpec) -> int:
    """Return the memory of the server's state in bytes.

    The state has the model, the Polyak mean, the state of the update rule and of the clients, the noise of central
    differential privacy, and two buffers for each client that trains.
    """
    largest = max(spec.measure(submodel.widths).bytes for submodel in spec.submodels)
    clients = min(spec.max_participants, spec.at_a_time)
    copies = 2 if spec.method.schedule.polyak_fraction else 1
    update_state = spec.update_bytes(spec.max_participants)
    kept = spec.max_participants * spec.kept_bytes
    return copies * spec.params.nbytes + update_state + kept + spec.noise_bytes + 2 * clients * largest


def client_bytes(spec: RunSpec) -> int:
    """Return the bytes of state that the server stores for each participating client."""
    of_update = spec.update_bytes(spec.max_participants) - spec.update_bytes(spec.max_participants - 1)
    return of_update + spec.kept_bytes


def _sample_values(ascending: Floats) -> Floats:
    """Return at most `MAX_FACTORS` evenly spaced values, with the first and the last."""
    count = min(len(ascending), MAX_FACTORS)
    return ascending[np.linspace(0, len(ascending) - 1, count).round().astype(np.int64)]


def _range_text(values: Floats) -> str:
    """Return the range of the finite values as text: `0.2`, or `0.1–0.2`, or `–` without finite values."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "–"
    bounds = (f"{finite.min():.3g}", f"{finite.max():.3g}")
    return "–".join(dict.fromkeys(bounds))
