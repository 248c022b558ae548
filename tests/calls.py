"""The number of calls that a function makes: a measure of its work that is the same on every machine."""

import sys
from collections.abc import Callable
from types import FrameType


def count_calls(function: Callable[[], object]) -> int:
    """Call a function, and return the number of calls of Python and C functions that it made in this thread."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls
