"""For tests of your own parts: do they keep the promises that runs are built on?

import fedraa as fl

def test_my_scheduler():
    fl.testing.check(HighestLoss())
"""

from fedraa.testing.kit import check as _look


def check(part: object, *, as_: str | None = None, ray: bool = False) -> None:
    """Raises AssertionError, a line for each promise that the part breaks; see `fedraa.check`.

    Raises ValueError, one sentence, for what is no part, or may be several kinds of part and `as_` does not say which.
    """
    if failures := _look(part, as_=as_, ray=ray).failures:
        raise AssertionError("\n".join(failures))


__all__ = ["check"]
