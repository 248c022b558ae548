"""Checks before the start of a run, such as: every client can get a task, and no batch is too small for the model."""

import numpy as np
import torch

from fedraa.aggregation.adapters import find_adapters
from fedraa.aggregation.low_rank import LowRank
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.client.flat_module import BatchedModule
from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER, SGD
from fedraa.client.lr_schedule import check_longest_task
from fedraa.components.calls import convert_errors
from fedraa.components.text import text_of
from fedraa.composition.compatibility import trains_full_width
from fedraa.composition.overrides import chosen_value
from fedraa.data.tree import list_leaves
from fedraa.engine import memory_check
from fedraa.engine.factories import make_cost_model, make_server
from fedraa.engine.robust_checks import check_attack, check_robust
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import InputError, no_effect_error
from fedraa.messages import KEPT_PREFIX
from fedraa.methods.depthfl import FirstBlocks
from fedraa.models.exits import EarlyExits
from fedraa.models.statistics import has_statistics
from fedraa.numbers import format_count
from fedraa.privacy.privacy import refuse_missing_library
from fedraa.rundir.failures import name_clients
from fedraa.server.async_rule import factor_at
from fedraa.server.schedule import SCHEDULER
from fedraa.server.selection import is_routing
from fedraa.server.staleness import STALENESS
from fedraa.submodels.masks import find_weight_norm
from fedraa.submodels.personal_layers import BATCH_NORM, find_personal
from schedulers import SchedulerRunner, delay_bound, is_feasible
from schedulers.baselines import Offline

# Arrays that clients can send besides the parameters, with the field of LocalTraining that requests them.
SETTING_OF_ARRAY = {"squares": "squares", "gradient": "full_gradient"}


def check_runnable(spec: RunSpec) -> None:
    """Raise InputError for a run that cannot reach its end."""
    # This raises InputError if the run has no metric with the target's name.
    _ = spec.limits
    if spec.method.schedule.scheduled:
        _check_feasible(spec)
        _check_shards(spec)
    _check_inputs(spec)
    algorithm = spec.method.local.algorithm
    with convert_errors("method.local.algorithm", algorithm):
        algorithm.check_model(spec.traced.module)
    _check_small_batches(spec)
    _check_local_schedule(spec)
    _check_adapters(spec)
    _check_exits(spec)
    check_robust(spec)
    check_attack(spec)
    _check_privacy(spec)
    _check_batch_norm(spec)
    _check_weight_norm(spec)
    if spec.experiment.vmap_batch > 1:
        _check_stack(spec)
    if spec.method.update.needs_all_clients and spec.at_a_time < spec.experiment.client_count:
        problem = f"{spec.experiment.method} waits for every one of the {spec.experiment.client_count} clients"
        raise InputError("concurrency", problem, got=spec.at_a_time, hint="leave it out")
    _check_return(spec)
    memory_check.check_memory(spec)
    staleness = getattr(spec.method.update, "staleness", None)
    if staleness is not None:
        factor_at(0, STALENESS.resolve(staleness))
    _check_first_task(spec)


def _check_shards(spec: RunSpec) -> None:
    shards, fragments = spec.experiment.server_shards, len(spec.index_sets)
    if shards > fragments:
        expected = f"at most {fragments}, the fragments of {spec.experiment.method}"
        raise InputError("server_shards", got=shards, expected=expected)


def _check_first_task(spec: RunSpec) -> None:
    """Raise InputError if the server's first task asks its client for an array that the client does not send.

    This also makes the state of a checkpoint, so that errors of custom components appear before the start.
    """
    algorithm = spec.method.local.algorithm
    server = make_server(spec, discard_event)
    if server.ledger.scheduler is not None:
        _check_offline(server.ledger.scheduler)
    asks: tuple[str, ...] = ()
    for client in list(server.begin())[:1]:
        asks = server.assign(client, 0.0).asks
    server.state()
    for name in asks:
        if name.startswith(KEPT_PREFIX) or name in algorithm.replies:
            continue
        if getattr(spec.method.local, SETTING_OF_ARRAY.get(name, ""), False):
            continue
        problem = f"{spec.experiment.method} requires {name} from its clients, which they do not send"
        if name in SETTING_OF_ARRAY:
            raise InputError("method", problem, hint=f"set {SETTING_OF_ARRAY[name]} of its LocalTraining")
        raise InputError("method", problem, expected=f"one of {', '.join(SETTING_OF_ARRAY)}")


def discard_event(kind: str, t: float, /, **fields: object) -> None:
    """Do nothing."""


def _check_feasible(spec: RunSpec) -> None:
    """Raise InputError if some client could never get a task."""
    schedule = spec.method.schedule
    table = make_cost_model(spec).table([submodel.widths for submodel in spec.submodels])
    costs = table.min(axis=1)
    worst = int(costs.argmax())
    if not np.isfinite(costs[worst]):
        problem = f"client {worst} lacks the memory to train any fragment"
        raise InputError("compute", problem, hint="give the client more memory, or cut smaller fragments")
    bound = schedule.delay_bound
    if bound is None or is_feasible(costs, bound).all():
        return
    if SCHEDULER.resolve(schedule.scheduler).bounded:
        raise InputError(
            "delay_bound",
            f"the cheapest fragment {table[worst].argmin()} of client {worst} costs {costs[worst]:.4g}",
            got=bound,
            expected=f"at least {costs[worst]:.4g}",
            hint=f"leave it out for the derived bound {delay_bound(table):.4g}",
        )


def _check_offline(runner: SchedulerRunner) -> None:
    """Raise InputError if the scheduler `offline` assigns a client a fragment that does not fit in its memory."""
    if not isinstance(runner.scheduler, Offline):
        return
    for client, owned in enumerate(runner.scheduler.owned):
        unfit = owned[np.isinf(runner.costs[client, owned])]
        if len(unfit):
            problem = f"it assigns fragment {unfit[0]} to client {client}, which lacks the memory to train it"
            hint = "give another scheduler, such as gre-raa, or give the client more memory"
            raise InputError("scheduler", problem, got="offline", hint=hint)


def _check_return(spec: RunSpec) -> None:
    """Raise InputError if the server may wait for ever for updates, or if all updates are too few for a step."""
    update = spec.method.update
    clients = spec.experiment.client_count
    waits_for_all = update.needs_all_clients or is_routing(getattr(spec.method.schedule, "next_client", "uniform"))
    is_robust = spec.method.aggregator is not None and update.asynchronous
    awaited = 0
    if waits_for_all:
        awaited = clients
    elif is_robust:
        awaited = min(clients, update.per_step)
    availability = spec.timing.availability
    end = np.inf if spec.limits.time is None else spec.limits.time
    if availability is not None and clients - availability.count_leaving(end) < awaited:
        count = "every client" if awaited == clients else f"{awaited} different clients"
        problem = f"without a period the trace does not repeat, and {spec.experiment.method} waits for {count}"
        raise InputError("availability", problem, got=spec.experiment.availability, hint="give --availability-period")
    tasks = spec.experiment.max_participations
    if tasks is None:
        return
    if waits_for_all:
        problem = f"{spec.experiment.method} waits for every client, but some clients reach this limit before others"
        raise InputError("max_participations", problem, got=tasks, hint="leave it out, or give another method")
    if not is_robust and tasks * clients < update.per_step:
        problem = f"{format_count(clients, 'client')} then send fewer updates than the {update.per_step} of one step"
        hint = "give a larger number, or a smaller --buffer-size"
        raise InputError("max_participations", problem, got=tasks, hint=hint)


def _check_inputs(spec: RunSpec) -> None:
    """Raise InputError if the samples lack a property that a setting needs: one input, or float inputs."""
    method = spec.experiment.method
    inputs = list_leaves(spec.example)
    name = spec.data.dataset.name
    if len(inputs) > 1:
        for field, is_set, problem, hint in (
            (
                "split",
                spec.method.local.split,
                f"{method} sends one input through the two halves of a model",
                "give another method",
            ),
            ("vmap_batch", spec.experiment.vmap_batch > 1, "it can stack only samples with one input", "set it to 1"),
        ):
            if is_set:
                problem += f", and the samples of {name} have {len(inputs)} inputs"
                raise InputError(field, problem, hint=hint)
    if spec.method.local.adversary and (len(inputs) > 1 or not inputs[0].is_floating_point()):
        kinds = " and ".join(str(x.dtype).removeprefix("torch.") for x in inputs)
        problem = f"it needs inputs that are one array of floats, but the inputs of {name} are {kinds}"
        raise InputError("method", problem, got=method, hint="give another method")


def _check_small_batches(spec: RunSpec) -> None:
    """Raise InputError if the run cannot reach its end because clients have too few training samples."""
    min_batch = spec.state.min_batch
    sizes = spec.data.sizes
    kind = type(spec.traced.module).__name__
    if spec.method.local.batch_size < min_batch:
        raise InputError(
            "batch_size",
            f"{kind} cannot train on batches of one sample",
            got=spec.method.local.batch_size,
            expected=f"{min_batch} or more",
        )
    small = np.flatnonzero(sizes < min_batch)
    if len(small) == len(sizes):
        raise InputError(
            "clients",
            f"each of the {len(sizes)} has one training sample, and {kind} cannot train on batches of one sample",
            hint="give fewer clients, or a model without batch norm",
        )
    if len(small) and spec.experiment.on_bad_client == "stop":
        raise InputError(
            "on_bad_client",
            f"{kind} cannot train on the single sample of {name_clients(small.tolist(), spec.data.names)}",
            got="stop",
            hint="give skip, or another partition",
        )


def _check_local_schedule(spec: RunSpec) -> None:
    """Raise InputError if a learning-rate schedule has no effect because every task has only one step."""
    local = spec.method.local
    if local.auto is None:
        check_longest_task(local.lr_schedule, local.count_steps(int(spec.data.sizes.max())))


def _check_adapters(spec: RunSpec) -> None:
    """Raise InputError if the server averages low-rank adapters, but the model has none.

    Such a run would equal a run of heterofl.
    """
    aggregator = spec.method.aggregator
    if aggregator is None or not isinstance(AGGREGATOR.resolve(aggregator), LowRank) or find_adapters(spec.traced):
        return
    kind = type(spec.traced.module).__name__
    chosen = chosen_value(spec.experiment, "aggregator")
    if chosen is not None:
        beside = f"{kind}, which has no low-rank adapters"
        hint = "leave it out, or give adapters to the model with fedraa.lora"
        raise no_effect_error("aggregator", text_of(chosen), beside, hint)
    problem = f"its server averages low-rank adapters, and {kind} has none"
    hint = "give adapters to the model with fedraa.lora, or run heterofl"
    raise InputError("method", problem, got=spec.experiment.method, hint=hint)


def _check_exits(spec: RunSpec) -> None:
    """Raise InputError if clients train the first blocks of a model, but the model has only one block.

    In such a run, every client would train the whole model.
    """
    module = spec.traced.module
    has_exits = isinstance(module, EarlyExits) and len(module.blocks) > 1
    if has_exits or not isinstance(spec.method.submodel, FirstBlocks):
        return
    kind = type(module).__name__
    hint = "give --model resnet18-exits, or --model mlp-exits with two or more hidden layers"
    chosen = chosen_value(spec.experiment, "submodel")
    if chosen is not None:
        raise no_effect_error("submodel", text_of(chosen), f"{kind}, which has only one classifier", hint)
    problem = f"its clients train the first blocks of a model and their classifiers, and {kind} has only one classifier"
    raise InputError("method", problem, got=spec.experiment.method, hint=f"{hint}, or run fedavg")


def _check_privacy(spec: RunSpec) -> None:
    """Raise InputError if the privacy library is missing, or if the model has statistics of private samples."""
    if spec.privacy is None:
        return
    refuse_missing_library()
    if has_statistics(spec.traced.module) or spec.state.changes:
        kind = type(spec.traced.module).__name__
        problem = f"{kind} stores statistics of training samples, which are not private"
        raise InputError("model", problem, hint="give a model with group norm or without normalisation")


def _check_batch_norm(spec: RunSpec) -> None:
    """Raise InputError if clients keep batch-norm parameters, but the model has no batch norm."""
    if BATCH_NORM not in spec.method.local.personal_layers or find_personal(spec.traced, (BATCH_NORM,)):
        return
    kind = type(spec.traced.module).__name__
    if chosen_value(spec.experiment, "personal_layers") is not None:
        beside = f"{kind}, which has no batch norm with weights"
        raise no_effect_error("personal_layers", BATCH_NORM, beside, "give the names of other layers")
    problem = f"its clients keep the parameters of batch norm, and {kind} has none"
    hint = "give a model with batch norm, such as --model resnet18-bn for images of 9 x 9 pixels or more, or run fedavg"
    raise InputError("method", problem, got=spec.experiment.method, hint=hint)


def _check_weight_norm(spec: RunSpec) -> None:
    """Raise InputError if masks set weights to 0 in a layer that divides by the norm of its weights."""
    submodel = spec.method.submodel
    # A policy of this kind masks the whole model. The others cut the model, or keep all weights.
    if not (trains_full_width(submodel) and submodel.cuts):
        return
    layer = find_weight_norm(spec.traced.module)
    if layer is not None:
        problem = f"{type(submodel).__name__} sets weights to 0, and the weight norm of {layer!r} divides by their norm"
        raise InputError("model", problem, hint="remove the weight norm, or run heterofl, which cuts units")


def warn_of_no_evaluation(spec: RunSpec) -> list[str]:
    """Return a warning if clients keep personal models, but no personal model can be evaluated."""
    if not (spec.method.local.algorithm.has_personal_model or spec.personal_names) or spec.personal_clients:
        return []
    return [
        f"method: the personal models of {spec.experiment.method} are not evaluated, because no client that trains has "
        "its own test samples; give test samples of the same clients"
    ]


def warn_of_small_shards(spec: RunSpec) -> list[str]:
    """Return a warning about the clients with too few samples to train the model."""
    small = np.flatnonzero(spec.data.sizes < spec.state.min_batch)
    if not len(small):
        return []
    kind = type(spec.traced.module).__name__
    clients = name_clients(small.tolist(), spec.data.names)
    return [
        f"clients: {clients} cannot train, with one training sample each, because {kind} "
        "cannot be trained on batches of one sample; they are quarantined; give fewer clients or another partition to "
        "train them as well"
    ]


def warn_of_single_steps(spec: RunSpec) -> list[str]:
    """Return a warning if every task has one step, in which the momentum and the proximal term of the user are 0."""
    local = spec.method.local
    has_other_steps = type(local.algorithm) is not LocalAlgorithm or local.auto is not None
    if has_other_steps or local.count_steps(int(spec.data.sizes.max())) > 1:
        return []
    zero = {"prox_mu": local.prox_mu}
    optimizer = LOCAL_OPTIMIZER.resolve(local.local_optimizer)
    if type(optimizer) is SGD and not optimizer.nesterov and local.optimizer_state == "reset":
        zero["momentum"] = local.momentum
    return [
        f"{name}: {value:g} has no effect, because every task has only one local step; give more local steps"
        for name, value in zero.items()
        if value and chosen_value(spec.experiment, name) is not None
    ]


def _check_stack(spec: RunSpec) -> None:
    """Raise InputError if the method or the model cannot train `vmap_batch` clients at once."""
    experiment = spec.experiment
    local = spec.method.local
    for is_set, reason in (
        (local.full_gradient, "it takes the gradient of all samples of a client"),
        (local.adversary, "an adversary of each client changes its inputs"),
        (local.split, "it splits the model in two"),
        (local.personal_layers, "each of its clients has other personal layers"),
        (type(local.algorithm) is not LocalAlgorithm, "its clients take other steps than those of local training"),
    ):
        if is_set:
            raise _stack_error(experiment.vmap_batch, f"{experiment.method} cannot be stacked, because {reason}")
    if spec.state.changes:
        raise _stack_error(experiment.vmap_batch, f"training changes {spec.state.changes[0]!r} in this model")
    widths = spec.traced.widths(spec.traced.full())
    model = BatchedModule(spec.traced.make_skeleton(widths), 1, torch.device("cpu"))
    model.load(spec.params[None])
    batch = spec.example[:2]
    try:
        results = [model.forward(rows[None]) for rows in (batch, torch.stack([batch[0], batch[0]]))]
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise _stack_error(experiment.vmap_batch, f"torch.func.vmap cannot run this model ({reason})") from None
    if not isinstance(results[0], torch.Tensor):
        kind = type(results[0]).__name__
        raise _stack_error(experiment.vmap_batch, f"in training, this model returns a {kind} instead of logits")
    alone, other = (result[0, 0] for result in results)
    if not torch.allclose(alone, other, atol=1e-5):
        problem = "the output for a sample depends on the other samples of its batch, as in models with batch norm"
        raise _stack_error(experiment.vmap_batch, problem)


def _stack_error(vmap_batch: int, problem: str) -> InputError:
    return InputError("vmap_batch", problem, got=vmap_batch, hint="set it to 1")
