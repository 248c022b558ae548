"""A check for tests of custom components: it tests the promises that runs rely on.

import fedraa as fl

def test_my_scheduler():
    fl.testing.check(HighestLoss())
"""

from fedraa.testing.kit import check as _look


def check(part: object, *, as_: str | None = None, ray: bool = False) -> None:
    """Raise AssertionError with a line for each promise that the component breaks; see `fedraa.check`.

    Args:
        part: The component in any form.
        as_: The name of its kind, if the object does not show it.
        ray: True to run it on Ray as well.

    Raises ValueError for an object that is not a component, or that may be of several kinds if `as_` does not name one.
    """
    failures = _look(part, as_=as_, ray=ray).failures
    if failures:
        raise AssertionError("\n".join(failures))


__all__ = ["check"]
