"""What is refused before the start: devices without work, models that cannot be batched, too little memory."""

import numpy as np
import torch

from fedraa.client.flat_module import BatchedModule
from fedraa.client.local_optimizer import EXTRA_PREFIX
from fedraa.data.tree import leaves
from fedraa.engine import resources
from fedraa.engine.run_spec import RunSpec
from fedraa.server.async_rules import factor_at
from fedraa.server.schedule import SCHEDULER
from fedraa.server.staleness import STALENESS
from schedulers import TOLERANCE, delay_bound

SENT = {"squares": "squares", "gradient": "full_gradient", "adversary": "adversary"}  # by which field of a Solver


def preflight(spec: RunSpec) -> None:
    """ValueError, one sentence, for a run that could not go on."""
    if spec.method.schedule.scheduled:
        _check_feasible(spec)
    _check_inputs(spec)
    if spec.experiment.stack > 1:
        _check_stack(spec)
    if spec.method.update.waits:
        _check_all_return(spec)
    resources.check(spec)
    if (staleness := getattr(spec.method.update, "staleness", None)) is not None:
        factor_at(0, STALENESS.make(staleness))
    server = spec.server(_nowhere)
    task = server.assign(next(iter(server.begin())), 0.0)  # what they refuse is refused here
    server.state()  # and what no checkpoint can hold
    asks = [name for name in task.asks if not name.startswith(EXTRA_PREFIX)]
    if unsent := [name for name in asks if not getattr(spec.method.local, SENT.get(name, ""), False)]:
        raise ValueError(
            f"method: {spec.experiment.method} takes {unsent[0]} from its clients, which send none; they would by "
            f"{SENT[unsent[0]]} of a Solver"
            if unsent[0] in SENT
            else f"method: {spec.experiment.method} takes {unsent[0]} from its clients, who can send {', '.join(SENT)}"
        )


def _nowhere(kind: str, t: float, /, **fields: object) -> None:
    """Records nothing."""


def _check_feasible(spec: RunSpec) -> None:
    """Refuses a start in which some client could never be given work."""
    schedule = spec.method.schedule
    table = spec.costs().table([submodel.widths for submodel in spec.submodels])
    cheapest, costs = table.argmin(axis=1), table.min(axis=1)
    worst = int(costs.argmax())
    where = f"client {worst} with its cheapest fragment {cheapest[worst]}"
    if not np.isfinite(costs[worst]):
        raise ValueError(f"capabilities: {where} lacks the memory to train it; give it more or cut smaller fragments")
    bound = schedule.delay_bound
    if bound is not None and costs[worst] > bound * (1 + TOLERANCE) and SCHEDULER.make(schedule.scheduler).bounded:
        raise ValueError(
            f"delay_bound: {bound:g} leaves {where} nothing to train, which costs {costs[worst]:.4g}; "
            f"give at least {costs[worst]:.4g}, or leave it out for K* = {delay_bound(table):.4g}"
        )


def _check_all_return(spec: RunSpec) -> None:
    """Refuses devices that go for good, or that are not asked again, where nothing goes on without them."""
    if spec.at_a_time < spec.experiment.clients:
        raise ValueError(
            f"concurrency: {spec.at_a_time} of {spec.experiment.clients}, but {spec.experiment.method} waits for every "
            "client; leave it out"
        )
    there = spec.timing.availability
    if there is not None and there.period is None:
        raise ValueError(
            f"availability: {spec.experiment.availability} has no period, and {spec.experiment.method} waits for every "
            "client; give --availability-period"
        )


def _check_inputs(spec: RunSpec) -> None:
    """ValueError for what needs one input, or one of numbers, where the data have others."""
    method, inputs, name = spec.experiment.method, leaves(spec.example), spec.data.dataset.name
    if len(inputs) > 1:
        for field, on, what in (
            ("split", spec.method.local.split, f"{method} sends one input through two halves of a model"),
            ("stack", spec.experiment.stack > 1, "minibatches of one input alone can be stacked"),
        ):
            if on:
                raise ValueError(f"{field}: {what}, and the samples of {name} have {len(inputs)} inputs")
    if spec.method.local.adversary and (len(inputs) > 1 or not inputs[0].is_floating_point()):
        kinds = " and ".join(str(each.dtype).removeprefix("torch.") for each in inputs)
        raise ValueError(
            f"method: {method} bends inputs that are one array of numbers, and those of {name} are {kinds}; "
            "take another method"
        )


def _check_stack(spec: RunSpec) -> None:
    """ValueError for what cannot be trained in stacks."""
    experiment, solver = spec.experiment, spec.method.local
    for on, what in (
        (solver.full_gradient, "takes the gradient of a whole shard"),
        (solver.adversary, "has inputs that an adversary of the client's own bends"),
        (solver.split, "is split in two"),
    ):
        if on:
            raise ValueError(f"stack: what {experiment.method} trains {what}; it cannot be stacked, set stack to 1")
    widths = spec.traced.widths(spec.traced.full())
    model = BatchedModule(spec.traced.skeleton(widths), 1, torch.device("cpu"))
    model.load(spec.params[None])
    batch = spec.example[:2]
    try:
        alone, other = (model.forward(rows[None])[0, 0] for rows in (batch, torch.stack([batch[0], batch[0]])))
    except (RuntimeError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"stack: torch.func.vmap cannot do with this model ({why}); set stack to 1") from None
    if not torch.allclose(alone, other, atol=1e-5):
        raise ValueError(
            "stack: what this model makes of a sample depends on the others of its minibatch, as with batch "
            "normalisation; it cannot be stacked, set stack to 1"
        )
