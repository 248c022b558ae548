"""Learning-rate schedules: the factor on the local learning rate as a function of how far the run is."""

import math
from collections.abc import Callable

UNITS = ("steps", "time", "passes")
TAKES = (
    "is none of constant, exponential:0.998, steps:150,250:0.1 or cosine:100, counted by server steps, or, with @time "
    "or @passes behind it, by the run's clock or by passes over the training data"
)
LAST = 0.99  # of a cosine's length where it is not counted in steps


def lr_unit(spec: str) -> str:
    """What a schedule counts: server `steps`, `time` on the run's clock, or `passes` over all training samples.

    Methods take unequally many server steps in equal time. Passes are those of the samples that clients have trained
    on, of updates that were taken in, over the training samples of all. Raises ValueError for anything else.
    """
    _, at, unit = spec.partition("@")
    if not at:
        return "steps"
    if unit not in UNITS:
        raise ValueError(f"lr_schedule: {spec!r} {TAKES}")
    return unit


def lr_schedule(spec: str) -> Callable[[float], float]:
    """The factor at each server step, or wherever the run is in what `lr_unit` says.

    `constant`; `exponential:D`, D^step (FedCM's .998); `steps:A,B,...:F`, times F at each of the steps
    (HeteroFL's 150,250:0.1); `cosine:T`, from 1 towards 0 over T steps, and on at the last of them: methods
    divide by the rate. Raises ValueError for anything else.
    """
    unit = lr_unit(spec)
    name, *arguments = spec.partition("@")[0].split(":")
    number = int if unit == "steps" else float
    try:
        match name, arguments:
            case "constant", []:
                return lambda at: 1.0
            case "exponential", [decay] if 0 < float(decay) <= 1:
                return lambda at: float(decay) ** at
            case "steps", [marks, factor] if 0 < float(factor) <= 1:
                places = [number(mark) for mark in marks.split(",")]
                return lambda at: float(factor) ** sum(at >= mark for mark in places)
            case "cosine", [text] if 0 < (total := number(text)) < math.inf:
                last = total - 1 if unit == "steps" else LAST * total
                return lambda at: 0.5 * (1 + math.cos(math.pi * min(at, last) / total))
    except ValueError:
        pass
    raise ValueError(f"lr_schedule: {spec!r} {TAKES}")
