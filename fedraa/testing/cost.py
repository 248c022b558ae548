"""What a part costs: time per decision and bytes held, and whether these are the bytes that it claims."""

import tracemalloc
from collections.abc import Callable

from fedraa.testing.drive import Drive, answers

LARGE = 100_000  # numbers in a model, beside which the part's other objects are small
SLACK = 64 * 1024  # bytes
STEPS, CALLS, TRIES = 12, 24, 5


def memory(start: Callable[..., Drive]) -> str | None:
    """The sentence of a part that holds more than it claims."""
    claimed, held = start(size=LARGE).claimed() or 0, _held(start)
    if held <= claimed + SLACK:
        return None
    return (
        f"holds {held:,} bytes for a model of {LARGE:,} numbers where its memory() claims {claimed:,}; runs that do "
        "not fit would be let in"
    )


def cost(start: Callable[..., Drive], usual: Callable[..., Drive], name: object) -> str:
    """Time and bytes against the usual part of its kind, in words."""
    ours, theirs = _seconds(start), _seconds(usual)
    against = name if isinstance(name, str) else "the usual one"
    text = f"{ours * 1e6:.3g} µs a call, {ours / max(theirs, 1e-9):.2g} times {against}"
    return f"{text}; holds {_held(start) / LARGE:.2g} bytes per number of the model" if start().sized else text


def _seconds(start: Callable[..., Drive]) -> float:
    """Per call, in the quickest of some tries: others may be at work on the machine."""
    tries = (answers(start, CALLS)[1].seconds for _ in range(TRIES))
    return min(sum(seconds) / len(seconds) for seconds in tries)


def _held(start: Callable[..., Drive]) -> int:
    """The most bytes that a part was seen to hold between decisions."""
    start(size=LARGE).step(0)  # what is made once, such as caches, is made now
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        before, most = tracemalloc.get_traced_memory()[0], 0
        drive = start(size=LARGE)
        for k in range(STEPS):
            drive.step(k)
            most = max(most, tracemalloc.get_traced_memory()[0] - before)
        return max(0, most - drive.own * LARGE)
    finally:
        if not traced:
            tracemalloc.stop()
