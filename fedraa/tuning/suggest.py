"""Optuna's sampler chooses the values of trials, and Optuna's pruner stops bad trials early.

No state of Optuna is stored. A result depends only on the seed, the trial's number and the finished trials. Therefore
an interrupted tuning can continue.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from fedraa.errors import InputError
from fedraa.objectives.metric_spec import Direction
from fedraa.rng import torch_seed
from fedraa.tuning.journal import Trial
from fedraa.tuning.space import Choices, Parameter, Space, Value

# Each method begins with this number of random trials.
RANDOM_TRIALS = 4
# No trial is stopped early before this number of trials has finished.
MIN_TRIALS_TO_STOP = 4
# No trial is stopped before it has used this number of tenths of the budget.
FIRST_TENTH_TO_STOP = 3
# If an earlier trial had the suggested values, Optuna suggests again, at most this number of times.
MAX_SUGGESTIONS = 20


def check_optuna() -> None:
    """Raise InputError if Optuna is not installed."""
    try:
        import optuna
    except ImportError:
        raise InputError(
            "optuna", "tuning needs Optuna, which is not installed", hint="install it: pip install 'optuna>=4'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def suggest_values(space: Space, ended: Sequence[Trial], seed: int, number: int, better: Direction) -> dict[str, Value]:
    """Return the values of a trial. Optuna suggests up to `MAX_SUGGESTIONS` times until the values are new.

    Args:
        space: The search space.
        ended: The finished trials of the method.
        seed: The seed of the tuning.
        number: The index of the trial.
        better: The better direction of the metric.
    """
    tried = [dict(trial.values) for trial in ended]
    for attempt in range(MAX_SUGGESTIONS):
        study = _make_study(space, ended, torch_seed(seed, "tune", number, attempt) % 2**32, better)
        suggestion = study.ask({name: _make_distribution(parameter) for name, parameter in space.items()})
        values = {name: _decode_value(space[name], suggestion.params[name]) for name in space}
        if values not in tried:
            break
    return values


class Judge:
    """An object that compares a running trial with finished trials after the same fraction of the budget."""

    def __init__(self, ended: Sequence[Trial], better: Direction) -> None:
        import optuna

        pruner = optuna.pruners.MedianPruner(n_startup_trials=MIN_TRIALS_TO_STOP, n_warmup_steps=FIRST_TENTH_TO_STOP)
        self._study = optuna.create_study(direction=_optuna_direction(better), pruner=pruner)
        for trial in ended:
            if trial.state == "done":
                self._study.add_trial(_make_frozen_trial(trial, {}, trial.value))
        self._trial = self._study.ask()

    def should_stop(self, tenth: int, value: float) -> bool:
        """Record the metric `value` after `tenth` tenths of the budget.

        Return True if the best metric of the trial so far is worse than the median metric of the finished trials after
        the same tenth.
        """
        self._trial.report(value, tenth)
        return bool(self._trial.should_prune())


def _make_study(space: Space, ended: Sequence[Trial], seed: int, better: Direction) -> Any:
    """Return an Optuna study with the finished trials. A trial's value is its rank in the order of `trial_merit`.

    The study maximises. If smaller metrics are better, the curves of the trials therefore have the opposite sign.
    """
    import optuna

    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    sign = 1 if better == "max" else -1
    merits = sorted({trial_merit(trial, better) for trial in ended if trial.state == "done"})
    for trial in ended:
        if trial.values.keys() != space.keys() or not all(space[name].contains(trial.values[name]) for name in space):
            continue
        rank = None
        if trial.state == "done":
            rank = merits.index(trial_merit(trial, better))
        curve = {tenth: sign * value for tenth, value in trial.curve.items()}
        study.add_trial(_make_frozen_trial(replace(trial, curve=curve), space, rank))
    return study


def _make_frozen_trial(trial: Trial, space: Space, value: float | None) -> Any:
    """Return a finished trial in Optuna's form. Failed and stopped trials count as worse than all others."""
    import optuna

    state = optuna.trial.TrialState.PRUNED
    if trial.state == "done":
        state = optuna.trial.TrialState.COMPLETE
    return optuna.trial.create_trial(
        state=state,
        value=value,
        params={name: _encode_value(parameter, trial.values[name]) for name, parameter in space.items()},
        distributions={name: _make_distribution(parameter) for name, parameter in space.items()},
        intermediate_values={int(tenth): value for tenth, value in trial.curve.items()},
    )


def _make_distribution(parameter: Parameter) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(parameter, Choices) and parameter.ordered:
        return IntDistribution(0, len(parameter.values) - 1)
    if isinstance(parameter, Choices):
        return CategoricalDistribution(range(len(parameter.values)))
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log)


def _decode_value(parameter: Parameter, suggested: Any) -> Value:
    """Return the value for a suggestion of Optuna. If the field has choices, the suggestion is an index."""
    if isinstance(parameter, Choices):
        return parameter.values[suggested]
    return parameter.rounded(suggested)


def _encode_value(parameter: Parameter, value: Value) -> Any:
    """Return a value in Optuna's form. If the field has choices, this is an index."""
    if isinstance(parameter, Choices):
        return parameter.values.index(value)
    return value


def _optuna_direction(better: Direction) -> Literal["minimize", "maximize"]:
    return "maximize" if better == "max" else "minimize"


def trial_merit(trial: Trial, better: Direction) -> tuple[float, float]:
    """Return a sort key that is larger for better trials: first by time to the target, then by final metric."""
    assert trial.value is not None
    earliness = -math.inf
    if trial.reached is not None:
        earliness = -trial.reached
    return earliness, trial.value if better == "max" else -trial.value


def best_of(trials: Sequence[Trial], better: Direction) -> Trial | None:
    """Return the best of the trials with the state `done`, the first one if several are equal."""
    done = [trial for trial in trials if trial.state == "done"]
    return max(done, key=lambda trial: (trial_merit(trial, better), -trial.number), default=None)
