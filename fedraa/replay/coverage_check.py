"""Check the coverage of a round: the coordinates that its clients trained, as far as the log has them."""

from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules

SHARED, NEVER = -1, -2


class Coverage:
    """The coordinates of the model by class: shared by all fragments, part of only one fragment, or of none.

    The last class has the blocks between different fragments of two adjacent groups. A whole model is one fragment, and
    all of it is shared. If a policy draws submodels, the log only bounds the metrics of a round.
    """

    def __init__(self, rules: Rules) -> None:
        resolved = rules.resolved
        own = {j: rules.shapes[w].params - resolved.shared for j, w in enumerate(resolved.fragments)}
        classes = {SHARED: resolved.shared, NEVER: resolved.parameters - resolved.shared - sum(own.values())} | own
        self._sizes = {name: size for name, size in classes.items() if size}
        self._last = dict.fromkeys(self._sizes, -1)
        self._size = resolved.parameters
        self._known = rules.known and not rules.method["update"].get("owned_head", False)

    def check(self, line: Line, round: int, fragments: list[int]) -> None:
        """Check the metrics of a round.

        Args:
            line: The `round` event.
            round: The round, from 0.
            fragments: The fragments of the clients that reported.
        """
        line.at_least("drift", 0)
        if not fragments:
            for name, value in (("coverage_max", 0), ("coverage_min_trained", 0), ("uncovered", self._size)):
                line.expect(name, value)
        if self._known:
            self._derive(line, round, fragments)
            return
        least = line.between("coverage_min", 0, len(fragments))
        line.between("longest_untrained", 0 if least else 1, 0 if least else round + 1)
        if not fragments:
            return
        least_trained = line.between("coverage_min_trained", max(least, 1), len(fragments))
        line.between("coverage_max", least_trained, len(fragments))
        line.between("uncovered", 0 if least else 1, 0 if least else self._size - 1)

    def _derive(self, line: Line, round: int, fragments: list[int]) -> None:
        times = {name: fragments.count(name) for name in self._sizes}
        times |= {name: count for name, count in ((SHARED, len(fragments)), (NEVER, 0)) if name in times}
        self._last |= {name: round for name, count in times.items() if count}
        line.expect("coverage_min", min(times.values()))
        line.expect("coverage_max", max(times.values()))
        line.expect("coverage_min_trained", min((count for count in times.values() if count), default=0))
        line.expect("uncovered", sum(self._sizes[name] for name, count in times.items() if not count))
        line.expect("longest_untrained", round - min(self._last.values()))
