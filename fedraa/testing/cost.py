"""The cost of a component: the time that it takes per decision, and the memory that it holds."""

import tracemalloc
from collections.abc import Callable

from fedraa.testing.drive import Drive, collect_answers

# Number of parameters of the model in a measurement of memory. It is so large that objects of a component whose size
# does not depend on the model can be neglected.
LARGE = 100_000
# Number of bytes that a component may hold in addition to the memory that it declares.
SLACK = 64 * 1024
# Number of decisions that a component makes while its memory is measured.
MEMORY_STEPS = 12
# Number of decisions that a component makes while its time is measured, and number of measurements.
TIMED_STEPS = 24
TIMED_TRIES = 5


def check_memory(start: Callable[..., Drive]) -> str | None:
    """Return a sentence if a component holds more memory than its method `memory` declares, otherwise None."""
    claimed = start(size=LARGE).claimed_bytes() or 0
    held = _measure_held(start)
    if held <= claimed + SLACK:
        return None
    return (
        f"holds {held:,} bytes for a model of {LARGE:,} numbers, but its memory() returns {claimed:,}; runs could "
        "start that do not fit into the memory"
    )


def describe_cost(start: Callable[..., Drive], usual: Callable[..., Drive], name: object) -> str:
    """Return a text with a component's memory and time per call. The time is compared with a built-in component's.

    Args:
        start: A function that starts a drive of the component.
        usual: A function that starts a drive of the built-in component.
        name: The name of the built-in component.
    """
    seconds, usual_seconds = _seconds_per_call(start), _seconds_per_call(usual)
    against = name if isinstance(name, str) else "the usual one"
    text = f"{seconds * 1e6:.3g} µs a call, {seconds / max(usual_seconds, 1e-9):.2g} times {against}"
    if not start().sized:
        return text
    return f"{text}; holds {_measure_held(start) / LARGE:.2g} bytes per number of the model"


def _seconds_per_call(start: Callable[..., Drive]) -> float:
    """Return the seconds per call in the fastest of several tries. Other processes may have slowed the other tries."""
    tries = (collect_answers(start, TIMED_STEPS)[1].seconds for _ in range(TIMED_TRIES))
    return min(sum(seconds) / len(seconds) for seconds in tries)


def _measure_held(start: Callable[..., Drive]) -> int:
    """Return the largest number of bytes that a component holds after a decision."""
    # This first step fills caches and makes other one-time allocations, so that the measurement does not count them.
    start(size=LARGE).step(0)
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        peak = 0
        drive = start(size=LARGE)
        for k in range(MEMORY_STEPS):
            drive.step(k)
            peak = max(peak, tracemalloc.get_traced_memory()[0] - before)
        return max(0, peak - drive.own * LARGE)
    finally:
        if not traced:
            tracemalloc.stop()
