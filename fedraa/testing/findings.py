"""The findings of a check."""

from dataclasses import dataclass, field

HELD = "held"


@dataclass
class Findings:
    """The result of a check: one line for each promise and one for the cost. Print it, or read `held` and `failures`.

    `lines` holds pairs (promise, finding) in the order of the checks. A finding is `held`, the sentence of a failure,
    or the reason for a skipped check.
    """

    part: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """A sentence, which names the component, for each promise that it breaks."""

    @property
    def held(self) -> bool:
        """Return True if the component keeps all promises that were checked."""
        return not self.failures

    def found(self, promise: str, failure: str | None) -> bool:
        """Record a promise and its failure, if any. Return True if the promise held."""
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
