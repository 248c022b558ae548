"""An assertion for the tests of `fedraa check`."""

import fedraa as fl


def only(part: object, promise: str, *names: str, as_: str | None = None) -> None:
    """Assert that exactly this check fails, and that its sentence has these names."""
    findings = fl.check(part, as_=as_)
    assert len(findings.failures) == 1, repr(findings)
    assert dict(findings.lines)[promise] == findings.failures[0]
    for name in names:
        assert name in findings.failures[0]
    assert "\n" not in findings.failures[0]
