"""The result of a check of a component."""

from dataclasses import dataclass, field

HELD = "held"


@dataclass
class Findings:
    """The result of a component's check. The printed result has one line for each requirement and one for the cost.

    Attributes:
        lines: Pairs (requirement, finding) in the order of the checks. A finding is the word `held`, a sentence about a
            failure, or the reason why the check was skipped.
    """

    part: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """A sentence for each requirement that the component breaks."""

    @property
    def held(self) -> bool:
        """Return True if the component meets all requirements that were checked."""
        return not self.failures

    def record(self, requirement: str, failure: str | None) -> bool:
        """Record a requirement. Return True if `failure` is None: the component then meets the requirement."""
        if failure is None:
            self.lines.append((requirement, HELD))
            return True
        sentence = f"{self.part} {failure}"
        self.failures.append(sentence)
        self.lines.append((requirement, sentence))
        return False

    def __repr__(self) -> str:
        width = max((len(requirement) for requirement, _ in self.lines), default=0)
        return "\n".join([self.part, *(f"  {requirement:<{width}}  {finding}" for requirement, finding in self.lines)])
