"""How long a worker may take before it counts as hung."""

from dataclasses import dataclass, field


@dataclass
class HangDetector:
    """Generous bounds from what was seen: `factor` times the slowest pace so far, and never under `least` seconds.

    Work is counted in units that durations are about proportional to, per kind of work: a pace is seconds per unit.
    Of a kind of which nothing has been seen yet, `unseen` seconds are borne.
    """

    factor: float = 20.0
    least: float = 60.0
    unseen: float = 3600.0
    _paces: dict[str, float] = field(default_factory=dict)

    def saw(self, kind: str, work: float, seconds: float) -> None:
        """One piece of work took so long."""
        self._paces[kind] = max(self._paces.get(kind, 0.0), seconds / work)

    def bound(self, kind: str, work: float) -> float:
        """Seconds after which such a piece of work counts as hung."""
        if kind not in self._paces:
            return self.unseen
        return max(self.least, self.factor * self._paces[kind] * work)
