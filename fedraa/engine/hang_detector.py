"""Time limits for the calls of workers."""

from dataclasses import dataclass, field


@dataclass
class HangDetector:
    """Time limits for calls. A limit depends on the slowest earlier call of the same kind.

    Attributes:
        factor: A call may take `factor` times as long per unit of work as the slowest earlier call.
        min_seconds: The smallest limit.
        unseen: The limit in seconds if no call of this kind has ended yet.
    """

    factor: float = 20.0
    min_seconds: float = 60.0
    unseen: float = 3600.0
    _paces: dict[str, float] = field(default_factory=dict)

    def record_duration(self, kind: str, work: float, seconds: float) -> None:
        """Record the seconds and the amount of work of a call."""
        self._paces[kind] = max(self._paces.get(kind, 0.0), seconds / work)

    def bound(self, kind: str, work: float) -> float:
        """Return the seconds after which a call with this amount of work counts as hung."""
        if kind not in self._paces:
            return self.unseen
        return max(self.min_seconds, self.factor * self._paces[kind] * work)
