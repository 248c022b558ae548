"""Learning-rate schedules: the factor on the local learning rate as a function of the server's step."""

import math
from collections.abc import Callable


def lr_schedule(spec: str) -> Callable[[int], float]:
    """The factor at each server step.

    `constant`; `exponential:D`, D^step (FedCM's .998); `steps:A,B,...:F`, times F at each of the steps
    (HeteroFL's 150,250:0.1); `cosine:T`, from 1 towards 0 over T steps, and on at the last of them: methods
    divide by the rate. Raises ValueError for anything else.
    """
    name, *arguments = spec.split(":")
    try:
        match name, arguments:
            case "constant", []:
                return lambda step: 1.0
            case "exponential", [decay] if 0 < float(decay) <= 1:
                return lambda step: float(decay) ** step
            case "steps", [marks, factor] if 0 < float(factor) <= 1:
                at = [int(mark) for mark in marks.split(",")]
                return lambda step: float(factor) ** sum(step >= mark for mark in at)
            case "cosine", [total] if int(total) > 0:
                return lambda step: 0.5 * (1 + math.cos(math.pi * min(step, int(total) - 1) / int(total)))
    except ValueError:
        pass
    raise ValueError(f"lr_schedule: {spec!r} is none of constant, exponential:0.998, steps:150,250:0.1 or cosine:100")
