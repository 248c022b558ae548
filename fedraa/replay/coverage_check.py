"""Check the coverage of a round: the number of clients that trained a coordinate of the model."""

from fedraa.replay.log_line import Line
from fedraa.replay.rules import Rules

SHARED, NEVER = -1, -2


class Coverage:
    """A check of the coverage metrics of rounds.

    It counts three kinds of coordinates: those that all fragments share, those of a single fragment, and those that no
    fragment has (weights between units of different fragments). For random submodels, only bounds can be checked.
    """

    def __init__(self, rules: Rules) -> None:
        resolved = rules.resolved
        sizes = {j: rules.shapes[w].params - resolved.shared for j, w in enumerate(resolved.fragments)}
        never = resolved.parameters - resolved.shared - sum(sizes.values())
        sizes |= {SHARED: resolved.shared, NEVER: never}
        self._sizes = {name: size for name, size in sizes.items() if size}
        self._last = dict.fromkeys(self._sizes, -1)
        self._size = resolved.parameters
        self._known = rules.costs_known and not rules.method["update"].get("owned_head", False)

    def check(self, line: Line, round: int, fragments: list[int]) -> None:
        """Check the coverage metrics and the field `drift` of a round.

        Args:
            line: The `round` event.
            round: The round, from 0.
            fragments: The fragments of the clients that reported.
        """
        line.at_least("drift", 0)
        if not fragments:
            for name, value in (("coverage_max", 0), ("coverage_min_trained", 0), ("uncovered", self._size)):
                line.expect_value(name, value)
        if self._known:
            self._check_derived(line, round, fragments)
        else:
            self._check_bounds(line, round, len(fragments))

    def _check_bounds(self, line: Line, round: int, clients: int) -> None:
        """Check that the coverage metrics are within the bounds that hold for any submodels."""
        minimum = line.between("coverage_min", 0, clients)
        if minimum > 0:
            line.expect_value("longest_untrained", 0)
        else:
            line.between("longest_untrained", 1, round + 1)
        if clients == 0:
            return
        minimum_trained = line.between("coverage_min_trained", max(minimum, 1), clients)
        line.between("coverage_max", minimum_trained, clients)
        if minimum > 0:
            line.expect_value("uncovered", 0)
        else:
            line.between("uncovered", 1, self._size - 1)

    def _check_derived(self, line: Line, round: int, fragments: list[int]) -> None:
        """Check that the coverage metrics have the values that follow from the fragments of the round's clients."""
        counts = {name: fragments.count(name) for name in self._sizes}
        if SHARED in counts:
            counts[SHARED] = len(fragments)
        self._last |= {name: round for name, count in counts.items() if count}
        line.expect_value("coverage_min", min(counts.values()))
        line.expect_value("coverage_max", max(counts.values()))
        line.expect_value("coverage_min_trained", min((count for count in counts.values() if count), default=0))
        line.expect_value("uncovered", sum(self._sizes[name] for name, count in counts.items() if not count))
        line.expect_value("longest_untrained", round - min(self._last.values()))
