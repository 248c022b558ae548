"""The cost of a component: its time per decision, and its memory compared with the memory that it declares."""

import tracemalloc
from collections.abc import Callable

from fedraa.testing.drive import Drive, collect_answers

# Number of parameters of a model that is so large that other objects of a component are small in comparison.
LARGE = 100_000
# Number of bytes by which a component may exceed the memory that it declares.
SLACK = 64 * 1024
# Number of decisions in a measurement of memory.
MEMORY_STEPS = 12
# Number of decisions in a measurement of time, and number of measurements.
TIMED_STEPS = 24
TIMED_TRIES = 5


def check_memory(start: Callable[..., Drive]) -> str | None:
    """Return a sentence about a component that holds more memory than its `memory()` declares, or None."""
    claimed = start(size=LARGE).claimed_bytes() or 0
    held = _measure_held(start)
    if held <= claimed + SLACK:
        return None
    return (
        f"holds {held:,} bytes for a model of {LARGE:,} numbers, but its memory() returns {claimed:,}; runs could "
        "start that do not fit into the memory"
    )


def describe_cost(start: Callable[..., Drive], usual: Callable[..., Drive], name: object) -> str:
    """Return a text that compares a component's time per call and memory with those of a usual component.

    Args:
        start: A function that starts a drive of the component.
        usual: A function that starts a drive of the usual component.
        name: The name of the usual component.
    """
    seconds, usual_seconds = _seconds_per_call(start), _seconds_per_call(usual)
    against = name if isinstance(name, str) else "the usual one"
    text = f"{seconds * 1e6:.3g} µs a call, {seconds / max(usual_seconds, 1e-9):.2g} times {against}"
    if not start().sized:
        return text
    return f"{text}; holds {_measure_held(start) / LARGE:.2g} bytes per number of the model"


def _seconds_per_call(start: Callable[..., Drive]) -> float:
    """Return the seconds per call in the fastest of several tries, because other processes may slow a try down."""
    tries = (collect_answers(start, TIMED_STEPS)[1].seconds for _ in range(TIMED_TRIES))
    return min(sum(seconds) / len(seconds) for seconds in tries)


def _measure_held(start: Callable[..., Drive]) -> int:
    """Return the peak number of bytes that a component holds between decisions."""
    # This first step makes one-time allocations, such as caches, which the measurement should not count.
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
