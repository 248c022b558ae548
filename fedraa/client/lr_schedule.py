"""Learning-rate schedules: the factor of the local learning rate during a run or a task."""

import math
from collections.abc import Callable
from functools import cache

from fedraa.errors import InputError, no_effect_error

LOCAL = "local"
STEP_UNITS = ("steps", LOCAL)
UNITS = (*STEP_UNITS, "time", "passes")
AUTO = "auto"
ADAPTIVE = "adaptive"
# `HalfwayCosine` is the cosine between the weight changes in the first and in the second half of a task. The schedule
# `adaptive` raises the learning rate if this cosine is above the following value, and lowers it if it is below.
DEFAULT_COSINE = -0.05
EXPECTED = (
    "constant, adaptive, exponential:0.998, steps:150,250:0.1 or cosine:100 by server steps, or with @time, @passes "
    "or @local by the run's clock, by passes over the training data or by the local steps of each task, as in "
    "cosine:auto@local"
)
# Schedules of other libraries, with the value of `lr_schedule` that the error message suggests for them.
USUAL_SCHEDULES = {
    "constant": "constant",
    "cosine": "cosine:100",
    "exponential": "exponential:0.998",
    "step": "steps:150,250:0.1",
    "steps": "steps:150,250:0.1",
}
# A cosine schedule in the unit `time` or `passes` stops falling at this fraction of its length, so that the
# learning-rate factor stays above 0.
COSINE_END = 0.99


def lr_unit(spec: str) -> str:
    """Return the unit of a schedule's progress: `steps`, `local`, `time` or `passes`.

    - `steps`: server steps. Methods differ in the number of server steps that they take in the same time.
    - `local`: local steps, from 0 in each task.
    - `time`: the time on the run's clock.
    - `passes`: samples of all applied updates, divided by the training samples of all clients.

    Raises InputError for an unknown unit.
    """
    _, at, unit = spec.partition("@")
    if not at:
        return "steps"
    if unit not in UNITS:
        raise InputError("lr_schedule", got=spec, expected=EXPECTED)
    return unit


def lr_schedule(spec: str, length: int = 1) -> Callable[[float], float]:
    """Return the learning-rate factor as a function of the progress, which has the unit `lr_unit(spec)`.

    - `constant`: The factor is 1.
    - `adaptive` or `adaptive:COSINE`: The factor is 1. The server adapts a second factor during the run.
    - `exponential:D`: The factor is D^step (FedCM has 0.998).
    - `steps:A,B,...:F`: The factor is multiplied by F at each of the steps A, B, ... (HeteroFL has 150,250:0.1).
    - `cosine:T`: The factor falls from 1 towards 0 over T steps. With `cosine:auto`, T is the length of a task.

    The factor of a cosine schedule is never 0, even after its end, because methods divide by the learning rate.

    Args:
        spec: The text of the schedule, with the unit after an @ if it is not `steps`.
        length: Number of local steps of a task, for `cosine:auto@local`.

    Raises:
        InputError: The text is not a schedule.
    """
    unit = lr_unit(spec)
    name, *arguments = spec.partition("@")[0].split(":")
    number = int if unit in STEP_UNITS else float
    try:
        match name, arguments:
            case ("constant", []) | ("adaptive", []) if unit == "steps":
                return lambda at: 1.0
            case "adaptive", [cosine] if -1 < float(cosine) < 1 and unit == "steps":
                return lambda at: 1.0
            case "exponential", [decay] if 0 < float(decay) <= 1:
                return lambda at: float(decay) ** at
            case "steps", [marks, factor] if 0 < float(factor) <= 1:
                places = [number(mark) for mark in marks.split(",")]
                return lambda at: float(factor) ** sum(at >= mark for mark in places)
            case "cosine", [text]:
                total = length if text == AUTO and unit == LOCAL else number(text)
                if 0 < total < math.inf:
                    last = total - 1 if unit in STEP_UNITS else COSINE_END * total
                    return lambda at: 0.5 * (1 + math.cos(math.pi * min(at, last) / total))
    except ValueError:
        pass
    raise InputError("lr_schedule", got=spec, expected=EXPECTED)


@cache
def local_factor(spec: str, length: int) -> Callable[[float], float]:
    """Return the learning-rate factor as a function of the local step in a task of `length` steps.

    The factor is always 1 if the schedule `spec` does not count local steps.
    """
    if lr_unit(spec) != LOCAL:
        spec = "constant"
    return lr_schedule(spec, length)


@cache
def mean_local_factor(spec: str, length: int) -> float:
    """Return the mean learning-rate factor over the local steps of a task of `length` steps."""
    factor = local_factor(spec, length)
    return math.fsum(map(factor, range(length))) / length


def run_factor(spec: str) -> Callable[[float], float]:
    """Return the learning-rate factor as a function of the run's progress, which has the unit `lr_unit(spec)`.

    The factor is always 1 if the schedule `spec` counts local steps.
    """
    factor = lr_schedule(spec)
    if lr_unit(spec) == LOCAL:
        return lr_schedule("constant")
    return factor


def target_cosine(spec: str) -> float | None:
    """Return COSINE of the schedule `adaptive:COSINE`; None for other schedules.

    The learning rate stays constant if the weight changes in the two halves of a task have this cosine.

    Raises InputError if the text is not a schedule.
    """
    lr_schedule(spec)
    name, _, cosine = spec.partition(":")
    if name != ADAPTIVE:
        return None
    return float(cosine or DEFAULT_COSINE)


def follows_length(spec: str) -> bool:
    """Return True for `cosine:auto@local`, whose factors depend on the task's number of local steps."""
    return lr_unit(spec) == LOCAL and f":{AUTO}" in spec


def check_longest_task(spec: str, steps: int) -> None:
    """Raise InputError if the schedule has no effect because all tasks have only one local step.

    Args:
        spec: The text of the schedule.
        steps: Number of local steps of the longest task.
    """
    adapts = target_cosine(spec) is not None
    is_local = lr_unit(spec) == LOCAL and mean_local_factor(spec, steps) == 1
    if steps == 1 and (adapts or is_local):
        hint = "give a schedule over server steps, such as cosine:100, or more local steps"
        raise no_effect_error("lr_schedule", spec, "one local step per task", hint)
