"""Checks that a method with differential privacy uses only clipped values of clients.

Unclipped values are, for example, control variates, losses for a scheduler, and numbers of samples as weights.
"""

from typing import Any

from fedraa.aggregation.coverage_mean import CoverageMean, FilledMean
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.client.compression import COMPRESSOR
from fedraa.client.lr_schedule import lr_unit, target_cosine
from fedraa.components.text import is_foreign, text_of
from fedraa.composition.method import Method
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.ledger.participation import PARTICIPATION, Poisson
from fedraa.privacy.privacy import PRIVACY
from fedraa.server.round_state import RoundState
from fedraa.server.round_update import Mean
from fedraa.server.schedule import SCHEDULER


def check_privacy(experiment: Experiment, method: Method) -> None:
    """Raise InputError if a method with privacy uses unclipped values of clients."""
    if experiment.privacy is None:
        return
    privacy = PRIVACY.resolve(experiment.privacy)
    _check_sent_values(str(experiment.method), method)
    if experiment.max_update_norm is not None:
        problem = "privacy already limits the norm of updates by clipping"
        raise InputError("max_update_norm", problem, got=experiment.max_update_norm, hint="leave it out")
    scheduler = getattr(method.schedule, "scheduler", None)
    if scheduler is not None and is_foreign(text_of(scheduler)):
        problem = "a custom scheduler may use training losses, which are not private"
        raise InputError("scheduler", problem, got=text_of(scheduler), hint=f"use {', '.join(SCHEDULER.names())}")
    _check_selection(method)
    if privacy.local:
        if not COMPRESSOR.resolve(method.local.compressor).lossless:
            problem = "local privacy would add its noise after the compression"
            raise InputError("compress", problem, got=text_of(method.local.compressor), hint="set it to none")
        if "compress" in method.local.algorithm.refuses:
            problem = f"clients of {experiment.method} keep values that follow the delta before the noise"
            raise InputError("privacy", problem, hint="give another method, such as fedavg, fedbuff or fed-raa")
        return
    if experiment.server_shards > 1:
        problem = "central privacy adds noise to the sum of whole updates, which no server shard has"
        raise InputError("server_shards", problem, got=experiment.server_shards, hint="leave it out")
    if method.asynchronous:
        _check_async_rule(str(experiment.method), method.update)
    else:
        _check_rounds(str(experiment.method), method, experiment.max_participations)


def _check_selection(method: Method) -> None:
    """Raise InputError if clients are chosen by losses or by numbers of samples."""
    for field in ("participation", "next_client"):
        source = getattr(method.schedule, field, None)
        if source is not None and not getattr(PARTICIPATION.resolve(source), "is_private", False):
            problem = "it may choose clients by losses or numbers of samples, which are not private"
            hint = "use uniform, round-robin or available"
            raise InputError(field, problem, got=text_of(source), hint=hint)


def _check_sent_values(name: str, method: Method) -> None:
    """Raise InputError if clients send other values besides their update."""
    local = method.local
    receives = method.auxiliary is not None and type(method.auxiliary).receive is not RoundState.receive
    for is_sent, value in (
        (receives, "control variates or other state"),
        (local.full_gradient, "a gradient of all samples"),
        (local.squares or method.submodel.needs_squares, "squares of gradients"),
        (bool(local.adversary), "the inputs of an adversary"),
        (bool(local.split), "activations"),
        (getattr(method.update, "uses_losses", False), "losses"),
    ):
        if is_sent:
            problem = f"clients of {name} also send {value}, which are not clipped"
            raise InputError("privacy", problem, hint="give another method, such as fedavg, fedbuff or fed-raa")
    if target_cosine(local.lr_schedule) is not None:
        problem = "clients also send cosines of their steps, which are not clipped"
        hint = "give --lr-schedule constant, and a learning rate, such as --lr 0.05"
        raise InputError("lr_schedule", problem, got=local.lr_schedule, hint=hint)
    if method.owned_head:
        problem = f"the mean of {name} reveals the labels of each client"
        raise InputError("update.owned_head", problem, got=True, hint="give --override update.owned_head=false")


def _check_rounds(name: str, method: Method, tasks: int | None) -> None:
    """Raise InputError if central privacy does not allow the aggregation or the participation of a method.

    `tasks` is the maximum number of tasks of a client; None means no limit.
    """
    update = method.update
    assert isinstance(update, Mean)
    if update.weights != "uniform":
        problem = "numbers of samples are private"
        raise InputError("weights", problem, got=update.weights, expected="uniform", hint="give --weights uniform")
    aggregator: Any = AGGREGATOR.resolve(update.aggregator)
    if type(aggregator) not in (CoverageMean, FilledMean):
        problem = f"central privacy works only with a mean, but {name} has {type(aggregator).__name__}"
        raise InputError("aggregator", problem, hint="leave it out, or give --privacy local")
    participation = PARTICIPATION.resolve(getattr(method.schedule, "participation", "all"))
    if isinstance(participation, Poisson):
        _check_secret_cohort(name, method, tasks)
    if participation.expected_size(2) is None:
        problem = "the expected number of clients in a round is unknown, but privacy divides the sum by this number"
        got = text_of(participation)
        raise InputError("participation", problem, got=got, expected="all, sample:K, bernoulli:P or poisson:P")


def _check_secret_cohort(name: str, method: Method, tasks: int | None) -> None:
    """Raise InputError if the cohort of a Poisson round changes later rounds, except through its noisy sum.

    The epsilon of Poisson rounds assumes that each round draws from all clients, and that the cohort stays secret.

    Args:
        name: The name of the method, for errors.
        method: The method.
        tasks: The maximum number of tasks of a client; None means no limit.
    """
    hint = "or give participation sample:K"
    if tasks is not None:
        problem = "the epsilon of Poisson rounds assumes that each round draws from all clients"
        raise InputError("max_participations", problem, got=tasks, hint=f"leave it out, {hint}")
    unit = lr_unit(method.local.lr_schedule)
    if unit in ("time", "passes"):
        problem = f"progress in {unit} depends on the clients that Poisson rounds draw, which are secret"
        raise InputError("lr_schedule", problem, got=method.local.lr_schedule, hint=f"count server steps, {hint}")
    if method.auxiliary is not None and method.auxiliary.momentum:
        problem = f"the momentum of {name} depends on the local steps of the clients that a Poisson round draws"
        raise InputError("participation", problem, hint="give participation sample:K")


def _check_async_rule(name: str, rule: Any) -> None:
    """Raise InputError if the weights of updates depend on numbers of samples, or if the rule adds no noise."""
    if rule.uses_samples:
        problem = f"{name} weights updates by numbers of samples or of local steps"
        raise InputError("privacy", problem, hint="give another method, such as fedavg, fedbuff or fed-raa")
    if rule.participation_correction:
        problem = "weights by numbers of samples may exceed 1"
        raise InputError("update.participation_correction", problem, got=rule.participation_correction, hint="give 0")
    if getattr(rule, "aggregator", None) is not None:
        problem = "central privacy works only with a mean"
        got = text_of(rule.aggregator)
        raise InputError("aggregator", problem, got=got, hint="leave it out, or give --privacy local")
    if rule.per_step > 1 and not rule.adds_noise:
        problem = f"{name} combines updates in a way for which central privacy does not define the noise"
        raise InputError("privacy", problem, hint="give fedbuff, or --privacy local")
