"""A check that users call in the tests of their custom components.

It tests the promises of components: rules on which runs rely, such as that equal inputs give equal results.

import fedraa as fl

def test_my_scheduler():
    fl.testing.check(HighestLoss())
"""

from fedraa.testing.kit import check as _look


def check(part: object, *, as_: str | None = None, ray: bool = False) -> None:
    """Raise AssertionError if the component breaks promises (rules for components), which `fedraa.check` documents.

    Args:
        part: The component: an object, a class, a function, or text such as "my_ext:Trim(share=0.1)".
        as_: The kind of the component, such as "staleness", if it cannot be inferred from the object.
        ray: True to also run the component on Ray.

    The message of the AssertionError has a line for each broken promise. The function raises ValueError for an object
    that is not a component, or that may be of several kinds if `as_` does not name one.
    """
    failures = _look(part, as_=as_, ray=ray).failures
    if failures:
        raise AssertionError("\n".join(failures))


__all__ = ["check"]
