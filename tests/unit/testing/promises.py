"""What tests of the kit share: how a broken promise is told."""

import fedraa as fl


def only(part: object, promise: str, sentence: str, as_: str | None = None) -> None:
    """One promise is broken, and that is said in one sentence."""
    findings = fl.check(part, as_=as_)
    assert len(findings.failures) == 1, repr(findings)
    assert dict(findings.lines)[promise] == findings.failures[0]
    assert sentence in findings.failures[0]
    assert "\n" not in findings.failures[0]
