"""A check that users call in the tests of their custom components.

For example:

    import fedraa as fl

    def test_my_scheduler():
        fl.testing.check(HighestLoss())
"""

from fedraa.testing.kit import check as _look


def check(part: object, *, as_: str | None = None, ray: bool = False) -> None:
    """Run `fedraa.check`. Raise AssertionError if the component breaks a requirement, with one line for each.

    Args:
        part: The component: an object, a class, a function, or text such as "my_ext:Trim(share=0.1)".
        as_: The kind of the component, such as "staleness". Needed only if the object may be of several kinds.
        ray: True to also run the component on Ray.

    Raises:
        AssertionError: The component breaks a requirement.
        ValueError: The object is no component, or `as_` is missing.
    """
    failures = _look(part, as_=as_, ray=ray).failures
    if failures:
        raise AssertionError("\n".join(failures))


__all__ = ["check"]
