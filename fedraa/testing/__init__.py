"""A check for tests of custom components.

It tests the promises of components, on which runs rely. An example is that equal inputs give equal results.

import fedraa as fl

def test_my_scheduler():
    fl.testing.check(HighestLoss())
"""

from fedraa.testing.kit import check as _look


def check(part: object, *, as_: str | None = None, ray: bool = False) -> None:
    """Raise AssertionError with a line for each promise that the component breaks; see `fedraa.check`.

    Args:
        part: The component: an object, a class, a function, or text such as "my_ext:Trim(share=0.1)".
        as_: The name of its kind, such as "staleness", if the object does not show it.
        ray: True to run the component on Ray as well.

    Raises ValueError for an object that is not a component, or that may be of several kinds if `as_` does not name one.
    """
    failures = _look(part, as_=as_, ray=ray).failures
    if failures:
        raise AssertionError("\n".join(failures))


__all__ = ["check"]
