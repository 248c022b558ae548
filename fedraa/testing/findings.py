"""The findings of a check."""

from dataclasses import dataclass, field

HELD = "held"


@dataclass
class Findings:
    """One line for each promise and one for what the part costs; `print` it, or look at `held` and `failures`.

    `lines` [(promise, what was found)] are in the order in which they were looked at: `held`, the sentence of a
    failure, or why it was not looked at.
    """

    part: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """A sentence, which names the component, for each promise that it breaks."""

    @property
    def held(self) -> bool:
        """True if the component keeps all promises that were checked."""
        return not self.failures

    def found(self, promise: str, failure: str | None) -> bool:
        """Record a promise and its failure, if any. Return True if the promise held."""
        if failure is not None:
            failure = f"{self.part} {failure}"
            self.failures.append(failure)
        self.lines.append((promise, HELD if failure is None else failure))
        return failure is None

    def __repr__(self) -> str:
        width = max((len(promise) for promise, _ in self.lines), default=0)
        return "\n".join([self.part, *(f"  {promise:<{width}}  {found}" for promise, found in self.lines)])
