"""The result of a check of a component."""

from dataclasses import dataclass, field

HELD = "held"


@dataclass
class Findings:
    """The result of a component's check: one line for each promise (rule for components) and one line for the cost.

    Print the object, or read its attributes `held` and `failures`. The attribute `lines` has pairs (promise, finding)
    in the order of the checks. A finding is `held`, a sentence about a failure, or the reason why the check was
    skipped.
    """

    part: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """A sentence for each promise that the component breaks. The sentence begins with the component's name."""

    @property
    def held(self) -> bool:
        """Return True if the component keeps all promises that were checked."""
        return not self.failures

    def record(self, promise: str, failure: str | None) -> bool:
        """Record if a promise held (`failure` is None) or how it failed. Return True if it held."""
        if failure is None:
            self.lines.append((promise, HELD))
            return True
        sentence = f"{self.part} {failure}"
        self.failures.append(sentence)
        self.lines.append((promise, sentence))
        return False

    def __repr__(self) -> str:
        width = max((len(promise) for promise, _ in self.lines), default=0)
        return "\n".join([self.part, *(f"  {promise:<{width}}  {finding}" for promise, finding in self.lines)])
