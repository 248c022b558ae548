"""Checks that the choices of a method fit together.

The argument `name` of these checks is the name of the method in error messages.
"""

from math import inf
from numbers import Real
from typing import Any

from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.aggregation.low_rank import LowRank
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import RobustAggregator
from fedraa.client.compression import COMPRESSOR, Sign
from fedraa.client.gradient_transforms import GRADIENT_TRANSFORM
from fedraa.client.kept_buffer import KeptBuffer
from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER, SGD
from fedraa.client.lr_schedule import LOCAL, lr_unit
from fedraa.components.calls import convert_errors
from fedraa.components.text import text_of
from fedraa.composition.method import Method
from fedraa.composition.overrides import SHORTCUTS, chosen_value
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment
from fedraa.config.sections import MethodOptions
from fedraa.data.transforms import Transforms
from fedraa.data.transforms.transform import transform_name
from fedraa.errors import InputError, no_effect_error
from fedraa.objectives import Classification, Objective
from fedraa.objectives.builtin import has_cross_entropy
from fedraa.server.async_rule import AsyncRule
from fedraa.server.optimizers import SERVER_OPTIMIZER, Momentum, ServerOptimizer, Sgd
from fedraa.server.round_update import Mean
from fedraa.server.schedule import SCHEDULER
from fedraa.server.staleness import Constant
from fedraa.submodels.policies.policy import AUTO, SubmodelPolicy
from fedraa.submodels.policies.regions import Arbitrary
from fedraa.submodels.policies.shuffled import Bernoulli, ShuffledBlocks

STALENESS_CLOCK = "schedule.staleness_clock"
# With these settings, a submodel's activations or learning rate depend on its fraction of the units.
RATE_BY_SHARE = ("local.scale_activations", "local.full_rate")


def check_terms(name: str, method: Method) -> None:
    """Raise InputError if settings of local training contradict the server's update or each other."""
    local = method.local
    if local.grad_mix < 1 and not (method.auxiliary is not None and method.auxiliary.momentum):
        problem = f"the server of {name} keeps no momentum"
        raise InputError("local.grad_mix", problem, got=local.grad_mix, hint="leave it out")
    if local.auto is not None and local.split:
        problem = f"auto needs a fixed number of bytes per task, but {name} sends bytes at every step"
        raise InputError("local_steps", problem, got=local.steps, hint="give a number")
    if local.split and getattr(method.schedule, "late", "drop") == "partial":
        problem = f"{name} sends activations at every step, so the bytes of a task that ends early are unknown"
        raise InputError("late", problem, got="partial", hint="leave it out")
    if not isinstance(local.transforms, list | tuple):
        raise InputError("gradient_transforms", got=local.transforms, expected="a tuple of GradientTransforms")
    for term in local.transforms:
        GRADIENT_TRANSFORM.resolve(term)
    _check_algorithm(local.algorithm)
    _check_compression(name, method)
    _check_refused(name, method)


def _check_algorithm(algorithm: LocalAlgorithm) -> None:
    """Raise InputError if a local algorithm is no object, or declares a wrong cost or wrong kept values."""
    if not isinstance(algorithm, LocalAlgorithm):
        expected = "an object of a class that derives from fedraa.LocalAlgorithm"
        raise InputError("method.local.algorithm", got=algorithm, expected=expected)
    with convert_errors("method.local.algorithm", algorithm):
        kept: object = algorithm.kept
        costs = {"passes": algorithm.passes, "epochs": algorithm.epochs}
    for name, number in costs.items():
        if isinstance(number, bool) or not isinstance(number, Real) or not 0 <= number < inf:
            problem = f"{type(algorithm).__qualname__}.{name} is wrong"
            raise InputError("method.local.algorithm", problem, got=number, expected="a number from 0")
    if not isinstance(kept, tuple) or not all(isinstance(buffer, KeptBuffer) for buffer in kept):
        problem = f"{type(algorithm).__qualname__}.kept is wrong"
        raise InputError("method.local.algorithm", problem, got=kept, expected="a tuple of KeptBuffers")


def _check_compression(name: str, method: Method) -> None:
    """Raise InputError if the compressor does not fit the server's update or the error feedback."""
    local = method.local
    compressor = COMPRESSOR.resolve(local.compressor)
    if isinstance(compressor, Sign) and not (compressor.scaled or _accepts_signs(method.aggregator)):
        problem = f"the server of {name} would add signs as if they were deltas"
        hint = "use scaled-sign, or the method signsgd, in which the server counts votes"
        raise InputError("compress", problem, got="sign", hint=hint)
    if local.error_feedback == "none":
        return
    if compressor.lossless:
        raise no_effect_error("error_feedback", local.error_feedback, "compress none")
    with convert_errors("compress", compressor):
        for_feedback = compressor.for_feedback()
    if for_feedback is None:
        problem = f"its error can be larger than the delta, so that errors would grow with {local.error_feedback}"
        hint = "use topk, randomk, scaled-sign or 8bit, or set error_feedback to none"
        raise InputError("compress", problem, got=text_of(local.compressor), hint=hint)


def _check_refused(name: str, method: Method) -> None:
    """Raise InputError for an option that breaks the mathematics of the method.

    The attribute `refuses` of the method's components lists such options with the reasons.
    """
    local = method.local
    refused = {**local.algorithm.refuses, **getattr(method.update, "refuses", {})}
    if method.auxiliary is not None:
        refused |= method.auxiliary.refuses
    is_robust = False
    if method.aggregator is not None:
        resolved = AGGREGATOR.resolve(method.aggregator)
        refused |= getattr(resolved, "refuses", {})
        is_robust = isinstance(resolved, RobustAggregator)
    compressor = COMPRESSOR.resolve(local.compressor)
    # If the server does not support compression, only compressors that drop entries are refused. If the local algorithm
    # does not support compression, all lossy compressors are refused: the algorithm uses the delta before compression.
    is_compressed = compressor.drops
    if "compress" in local.algorithm.refuses:
        is_compressed = not compressor.lossless
    optimizer = LOCAL_OPTIMIZER.resolve(local.local_optimizer)
    server_optimizer: ServerOptimizer = Sgd()
    if isinstance(method.update, Mean):
        server_optimizer = method.update.resolve_optimizer()
    # For each option: a value that counts as true if the option is on, the option's value, and the value that turns the
    # option off.
    options = {
        "momentum": (local.momentum, local.momentum, "0"),
        "clip": (local.clip, local.clip, "0"),
        "compress": (is_compressed, local.compressor, "none"),
        "aggregator": (is_robust, text_of(method.aggregator), "covered"),
        "local_optimizer": (type(optimizer) is not SGD, text_of(local.local_optimizer), "sgd"),
        "local_optimizer_state": (local.optimizer_state == "keep", local.optimizer_state, "reset"),
        "local.sam_rho": (local.sam_rho, local.sam_rho, "0"),
        "server_optimizer": (type(server_optimizer) is not Sgd, text_of(server_optimizer), "sgd"),
        "server_lr": (server_optimizer.server_lr != 1, server_optimizer.server_lr, "1"),
    }
    for option, reason in refused.items():
        if option not in options:
            raise InputError("refuses", f"{name} lists an unknown option", got=option, expected=", ".join(options))
        is_on, value, off = options[option]
        if is_on:
            raise InputError(option, f"it breaks {name}: {reason}", got=value, hint=f"set it to {off}")


def _accepts_signs(aggregator: Any) -> bool:
    """Return True if the aggregator uses only the signs of a delta; False for None. A custom one may lack the field."""
    return aggregator is not None and getattr(AGGREGATOR.resolve(aggregator), "accepts_signs", False)


def check_votes(options: MethodOptions, method: Method) -> None:
    """Raise InputError if the user sets an aggregator of signs without a suitable server learning rate.

    The aggregated signs are -1 or 1. With the default rate, which suits deltas, a server step would be far too long.
    """
    aggregator = chosen_value(options, "aggregator")
    if not _accepts_signs(aggregator):
        return
    if any(chosen_value(options, name) is not None for name in ("server_lr", "server_optimizer")):
        return
    optimizer = SERVER_OPTIMIZER.resolve(getattr(method.update, "optimizer", None))
    if isinstance(optimizer, Sgd | Momentum) and not _accepts_signs(find_method(options.method).aggregator):
        problem = f"aggregator {text_of(aggregator)} returns signs, so that every parameter would change by this value"
        hint = "give --server-lr 0.001, the rate of signsgd, or another rate"
        raise InputError("server_lr", problem, got=optimizer.server_lr, hint=hint)


def check_personal(name: str, method: Method, *, server_shards: int) -> None:
    """Raise InputError if the method's personal layers are missing or not supported."""
    local = method.local
    layers = local.personal_layers
    for field in local.algorithm.needs:
        if not getattr(local, field):
            raise InputError(field, f"the formula of {name} needs it", got=getattr(local, field), hint="give a value")
    if local.split and (layers or type(local.algorithm) is not LocalAlgorithm):
        problem = f"{name} divides the model between client and server, so that clients have no personal model"
        hint = "give another method"
        if layers:
            hint += ", or leave out personal_layers"
        raise InputError("method", problem, hint=hint)
    if not layers:
        return
    reason = ""
    if server_shards > 1:
        reason = f"with server_shards {server_shards}, the server updates all layers"
    elif method.auxiliary is not None and method.auxiliary.momentum:
        reason = f"clients of {name} step along the server's momentum, which is 0 in layers that they do not send"
    elif local.full_gradient or "gradient" in local.algorithm.replies:
        reason = f"clients of {name} send a gradient of all layers"
    elif method.aggregator is not None and isinstance(AGGREGATOR.resolve(method.aggregator), LowRank):
        reason = f"the aggregator of {name} needs whole adapters"
    if reason:
        raise InputError("personal_layers", reason, got=", ".join(layers), hint="leave it out")


def _has_plain_loss(objective: Objective) -> bool:
    """Return True if the training loss of the objective is the mean cross-entropy of one output."""
    kind = type(objective)
    names = ("forward", "outputs", "loss", "training_loss")
    is_mean = all(getattr(kind, name) is getattr(Classification, name) for name in names)
    return has_cross_entropy(objective) and is_mean and not objective.auxiliary


def check_objective(name: str, method: Method, objective: Objective, *, vmap_batch: int) -> None:
    """Raise InputError if the method or `vmap_batch` needs class labels that the objective does not have."""
    if objective.classifies:
        if vmap_batch > 1 and not _has_plain_loss(objective):
            problem = (
                f"a batched computation has only the cross-entropy of one output, not the loss of {objective.name}"
            )
            raise InputError("vmap_batch", problem, got=vmap_batch, hint="set it to 1")
        return
    for is_on, problem, hint in (
        (
            method.local.label_masked,
            f"{name} masks the logits of labels that a client lacks",
            "give --override local.label_masked=false",
        ),
        (
            method.owned_head,
            f"{name} averages the output rows of labels that a client has",
            "give --override update.owned_head=false",
        ),
        (
            method.local.algorithm.classifies,
            f"{name} compares the features of labelled samples",
            "give another method, such as fedavg",
        ),
        (
            vmap_batch > 1,
            f"vmap_batch {vmap_batch} pads minibatches with labels that stand for no class",
            "set vmap_batch to 1",
        ),
    ):
        if is_on:
            problem += f", but {objective.name} has no such labels"
            raise InputError("objective", problem, hint=f"{hint}, or give the objective classification")


def check_transforms(transforms: Transforms, objective: Objective) -> None:
    """Raise InputError if a transform flips or shifts samples, but not their targets (such as segmentation masks)."""
    moving = [transform_name(part) for part in transforms.parts if part.moves]
    if objective.placed and moving:
        problem = f"{moving[0]} moves parts of a sample, but the targets of {objective.name} do not move with them"
        raise InputError("transforms", problem, hint="leave it out")


def can_be_spread(method: Method) -> bool:
    """Return True if the server's parameters can be divided among server shards."""
    rule = method.update
    return isinstance(rule, AsyncRule) and rule.mixing_formula is not None and method.submodel.scheduled


def check_shards(name: str, method: Method, shards: int) -> None:
    """Raise InputError if the method cannot use this number of server shards."""
    if not can_be_spread(method):
        problem = f"it needs an update rule that only mixes or adds the weights of one fragment, unlike {name}'s"
        hint = "leave it out"
        if method.asynchronous and method.submodel.scheduled:
            hint += ", or give the async rule convex-mix or delta"
        raise InputError("server_shards", problem, got=shards, hint=hint)


def fields_without_effect(experiment: Experiment, method: Method) -> dict[str, str]:
    """Return the options that the user set although they have no effect, with the reasons.

    Args:
        experiment: The experiment. A field counts as set if it differs from its default.
        method: The method of the experiment, with the experiment's values.
    """
    trains_whole = not method.submodel.scheduled and method.submodel.whole
    whole = f"{experiment.method}, in which clients train the whole model"
    scheduler = getattr(method.schedule, "scheduler", None)
    reasons: dict[str, str] = {}
    if trains_whole:
        reasons |= dict.fromkeys(("cut_layers", *RATE_BY_SHARE), whole)
    elif trains_full_width(method.submodel):
        why = f"{experiment.method}, in which clients train the full width of the model under a mask"
        reasons |= dict.fromkeys(("cut_layers", *RATE_BY_SHARE), why)
    if trains_whole:
        if method.schedule.scheduled:
            reasons |= dict.fromkeys(("scheduler", "delay_bound", STALENESS_CLOCK), whole)
        is_mean = isinstance(find_method(experiment.method).aggregator, CoverageMean) and not method.owned_head
        if is_mean and chosen_value(experiment, "aggregator") in ("covered", "filled"):
            reasons["aggregator"] = whole
    elif scheduler is not None and not SCHEDULER.resolve(scheduler).bounded:
        reasons["delay_bound"] = f"scheduler {text_of(scheduler)}, which has no bound"
    ratios = getattr(method.submodel, "ratios", None)
    if isinstance(ratios, tuple | list) and len(ratios) == 1:
        reasons |= dict.fromkeys(
            ("scheduler", "delay_bound", STALENESS_CLOCK, "cut_layers", *RATE_BY_SHARE), "one fragment"
        )
    ignores_stale = hasattr(method.update, "delay_limit")
    if getattr(method.update, "staleness", None) in ("constant", Constant()) and not ignores_stale:
        reasons[STALENESS_CLOCK] = "staleness constant, with which the weight does not depend on staleness"
    if isinstance(method.submodel, Arbitrary) and method.submodel.level != "MIX":
        reasons["submodel.redraw"] = f"level {method.submodel.level}, at which all clients train equally many regions"
    levels: Any = getattr(getattr(method.submodel, "capacities", None), "levels", ())
    if levels != AUTO and len(set(levels)) == 1:
        reasons["submodel.capacities.redraw"] = f"capacities {levels[0]:g}, the same for all clients"
        if levels[0] == 1:
            full = "capacities 1, with which clients train the whole model"
            reasons |= dict.fromkeys(("submodel.stride", "submodel.shuffled", *RATE_BY_SHARE), full)
    if method.submodel.scales:
        scales = f"{experiment.method}: its submodels scale the activations and the learning rate themselves"
        reasons |= dict.fromkeys(RATE_BY_SHARE, scales)
    elif method.local.full_rate:
        reasons["local.scale_activations"] = "local.full_rate, which scales the activations too"
    optimizer = LOCAL_OPTIMIZER.resolve(method.local.local_optimizer)
    if optimizer.uses_lr == "never":
        finds = f"local_optimizer {text_of(optimizer)}, which finds the learning rate"
        reasons |= dict.fromkeys(("lr", "lr_schedule", "local.full_rate"), finds)
    elif optimizer.uses_lr == "first step":
        starts = f"local_optimizer {text_of(optimizer)}, for which lr is the rate of the first step"
        if lr_unit(method.local.lr_schedule) == LOCAL:
            reasons["lr_schedule"] = starts
        elif method.local.optimizer_state == "keep" and method.local.lr_schedule != "constant":
            reasons["lr_schedule"] = f"{starts} of a client's first task if local_optimizer_state is keep"
    is_vote = method.aggregator is not None and not AGGREGATOR.resolve(method.aggregator).weighs
    if is_vote and chosen_value(experiment, "weights") == "samples":
        reasons["weights"] = f"aggregator {text_of(method.aggregator)}, which does not weight clients by their samples"
    names: dict[str, str] = {}
    for name, why in reasons.items():
        names |= dict.fromkeys((name, *SHORTCUTS.get(name, ())), why)
    # An override with the value False switches a setting off, so it does not count as set.
    set_options = {key for key in names if key in Experiment.model_fields and experiment.is_set(key)}
    set_paths = {path for path, value in experiment.override.items() if value is not False}
    return {key: why for key, why in names.items() if key in set_options | set_paths}


def trains_full_width(policy: SubmodelPolicy) -> bool:
    """Return True if clients hold the whole model, even if they train only some parameters."""
    if isinstance(policy, Bernoulli | ShuffledBlocks):
        return not policy.kernels
    return policy.full_width
