"""Measurement of a component: the time of a call, and the memory between calls."""

import tracemalloc
from collections.abc import Callable

from fedraa.testing.tester import Tester, collect_answers

# The number of the model's parameters. Beside a state of this size, objects of constant size do not matter.
LARGE = 100_000
# A component may hold this number of bytes more than its method `memory` returns.
SLACK = 64 * 1024
MEMORY_STEPS = 12
TIMED_STEPS = 24
TIMED_TRIES = 5


def check_memory(start: Callable[..., Tester]) -> str | None:
    """Return a problem if a component holds more memory than its method `memory` returns, otherwise None."""
    claimed = start(size=LARGE).claimed_bytes() or 0
    held = _measure_held(start)
    if held <= claimed + SLACK:
        return None
    return (
        f"holds {held:,} bytes for a model of {LARGE:,} numbers, but its memory() returns {claimed:,}; runs could "
        "start that do not fit into the memory"
    )


def describe_cost(start: Callable[..., Tester], usual: Callable[..., Tester], name: object) -> str:
    """Return a text with the time per call and the memory of a component and of a built-in component.

    Args:
        start: A function that returns a new tester of the component.
        usual: A function that returns a new tester of the built-in component.
        name: The name of the built-in component.
    """
    seconds, usual_seconds = _seconds_per_call(start), _seconds_per_call(usual)
    against = name if isinstance(name, str) else "the usual one"
    text = f"{seconds * 1e6:.3g} µs a call, {seconds / max(usual_seconds, 1e-9):.2g} times {against}"
    if not start().sized:
        return text
    return f"{text}; holds {_measure_held(start) / LARGE:.2g} bytes per number of the model"


def _seconds_per_call(start: Callable[..., Tester]) -> float:
    tries = (collect_answers(start, TIMED_STEPS)[1].seconds for _ in range(TIMED_TRIES))
    return min(sum(seconds) / len(seconds) for seconds in tries)


def _measure_held(start: Callable[..., Tester]) -> int:
    """Return the largest number of bytes that a component holds after a call."""
    # The first step may fill caches of libraries. Their memory should not count, so this step is not measured.
    start(size=LARGE).step(0)
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        peak = 0
        tester = start(size=LARGE)
        for k in range(MEMORY_STEPS):
            tester.step(k)
            peak = max(peak, tracemalloc.get_traced_memory()[0] - before)
        return max(0, peak - tester.own * LARGE)
    finally:
        if not traced:
            tracemalloc.stop()
