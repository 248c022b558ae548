"""The check of a component against all requirements, with a tester and in small runs."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from fedraa.components.calls import correction_hint
from fedraa.composition.method import Method
from fedraa.errors import StructuredError
from fedraa.testing.client_testers import PIECES
from fedraa.testing.cost import check_memory, describe_cost
from fedraa.testing.findings import Findings
from fedraa.testing.infer_type import identify_component
from fedraa.testing.kinds import Kind
from fedraa.testing.other_process import can_travel, digest_elsewhere
from fedraa.testing.small_runs import Outcome, drop_speed_effects, round_trip, run_on_ray, run_small_experiment
from fedraa.testing.tester import COVERED, GIVEN, Tester, collect_answers

# A tester calls a component this number of times.
STEPS = 24
# After these numbers of calls, a state is saved and restored.
CUTS = (1, 4, 6, 11)
# A test interrupts and resumes a run this number of times.
PAUSES = 3
RUNS = "runs in a small experiment"
SEEDED = "same bits despite other draws"
WORKERS = "same bits for one worker and two"
PROCESS = "same bits in another process"
STATE = "state and restore complete"
RESUMED = "same run when killed and resumed"
ARGUMENTS = "answers depend only on arguments"
RAY = "same bits on Ray"
MEMORY = "memory as claimed"
LATER = "not checked, because of the failure above"
Verdict = str | None
"""A sentence about a broken requirement, without its subject (the component), or None if the requirement holds."""


def check(part: object, *, as_: str | None = None, ray: bool = False) -> Findings:
    """Check within seconds that a component or a method meets the requirements of fedraa's runs.

        fedraa.check("my_ext:HighestLoss")
        assert fedraa.check(MyWeight(0.3)).held

    A run with the component must have the same bits in all of these cases: with one worker or two, in another process,
    with other states of the global random generators, and after the run was killed and resumed.

    The component must not change its arguments. It must not change coordinates (parameters) that no client trained. It
    may hold at most the memory that it declares.

    Checks that rely on a failed requirement are skipped. The cost is compared with the cost of a built-in
    component. A high cost is no failure.

    Args:
        part: The component in any form: an object, a class, a function, a Method, or text such as
            "my_ext:Trim(share=0.1)".
        as_: The kind of the component, such as "staleness". Needed only if it may be of several kinds.
        ray: True to also run the component on Ray.

    Returns:
        The findings. `print` shows one line for each requirement. `held` is True if all were met.

    Raises:
        ValueError: The object is no component, or `as_` is missing.
    """
    kind, component = identify_component(part, as_)
    name: str = getattr(component, "__qualname__", None) or type(component).__qualname__
    if isinstance(component, Method):
        name = component.name
    findings = Findings(name.rpartition(".")[2])
    _ComponentCheck(kind, component, findings).check_all(ray=ray)
    return findings


class _ComponentCheck:
    """The check of one component. Each tester and each small run gets a new copy of the component."""

    def __init__(self, kind: Kind, part: Any, findings: Findings) -> None:
        self._kind = kind
        self._part = deepcopy(part)
        self._usual = kind.usual_for(part)
        self._findings = findings

    def check_all(self, *, ray: bool) -> None:
        """Check all requirements. Checks that rely on a failed requirement are skipped."""
        record = self._findings.record
        try:
            _, tester = collect_answers(self._start_tester, STEPS)
            self._base = self._run_small()
        # A user-defined component may raise any exception.
        except Exception as error:
            failure = f"fails with {_format_error(error)}"
            # The text of a StructuredError has a hint.
            if not isinstance(error, StructuredError):
                failure += f"; {correction_hint(error, self._findings.part)}"
            record(RUNS, failure)
            return
        record(RUNS, None)
        sound = True
        for requirement, look in self._list_checks(tester, ray):
            if sound:
                sound = record(requirement, look())
            else:
                self._findings.lines.append((requirement, LATER))
        if tester.covers:
            record(COVERED, tester.broken.get(COVERED))
        if tester.pieces:
            record(PIECES, tester.broken.get(PIECES))
        for requirement in tester.further:
            record(requirement, tester.broken.get(requirement))
        if tester.claimed_bytes() is not None:
            record(MEMORY, check_memory(self._start_tester))
        self._findings.lines.append(("costs", describe_cost(self._start_tester, self._start_usual, self._usual)))

    def _list_checks(self, tester: Tester, ray: bool) -> list[tuple[str, Callable[[], Verdict]]]:
        chain = [(GIVEN, lambda: tester.broken.get(GIVEN)), (SEEDED, self._check_seeds), (WORKERS, self._check_workers)]
        if tester.stateful:
            chain.append((STATE, self._check_state))
        else:
            chain.append((ARGUMENTS, self._check_arguments))
        chain.append((RESUMED, self._check_resumption))
        # Other processes take seconds to start, so faster checks come first.
        if can_travel(self._kind, self._part):
            chain.append((PROCESS, self._check_elsewhere))
        if ray:
            chain.append((RAY, self._on_ray))
        return chain

    def _check_seeds(self) -> Verdict:
        self._again = self._base.first_difference(self._run_small(seed=1, workers=2))
        if self._again is None:
            return None
        where = self._base.first_difference(self._run_small())
        if where:
            return (
                f"makes two equal runs differ {where}: it draws numbers that no seed determines, or keeps state "
                "outside its attributes, such as in a global variable"
            )
        where = self._base.first_difference(self._run_small(seed=1))
        if where:
            return (
                f"makes runs differ {where} if the generators of the process have other seeds: it draws from one of "
                "them; draw from the rng that is passed to it"
            )
        return None

    def _check_workers(self) -> Verdict:
        if self._again is None:
            return None
        return (
            f"gives different results on one worker than on two {self._again}: its results depend on earlier calls, "
            "which have another order on two workers"
        )

    def _check_elsewhere(self) -> Verdict:
        try:
            other_digests = set(digest_elsewhere(self._kind, self._part))
        except RuntimeError as error:
            return f"fails in another process: {error}"
        if other_digests == {self._base.digest}:
            return None
        return (
            "gives other bits in another process: it depends on an order that differs between processes, such as the "
            "order of a set of texts or of hash(); sort the values"
        )

    def _check_state(self) -> Verdict:
        for cut in CUTS:
            tester, again = self._start_tester(), self._start_tester()
            for k in range(cut):
                tester.step(k)
            try:
                again.restore(round_trip(tester.state()))
            # A user-defined component may raise any exception.
            except Exception as error:
                return f"cannot be restored from its state after {cut} decisions: {_format_error(error)}"
            for k in range(cut, STEPS):
                if tester.step(k) != again.step(k):
                    return (
                        f"makes another decision {k} if it was restored from its state after decision {cut}: state() "
                        "omits a value, or restore() does not restore it"
                    )
        return None

    def _check_arguments(self) -> Verdict:
        forth, _ = collect_answers(self._start_tester, STEPS)
        tester = self._start_tester()
        back = [tester.step(k) for k in reversed(range(STEPS))]
        if forth == back[::-1]:
            return None
        return "gives other answers if the calls have another order; let it depend only on its arguments"

    def _check_resumption(self) -> Verdict:
        try:
            where = self._base.first_difference(self._run_small(pauses=PAUSES, events=len(self._base.events)))
        # A user-defined component may raise any exception.
        except Exception as error:
            return f"fails when its run is killed and resumed, with {_format_error(error)}"
        if where:
            return f"makes a run differ {where} after it is killed and resumed"
        return None

    def _on_ray(self) -> Verdict:
        base = drop_speed_effects(self._base)
        for workers in (1, 2):
            outcome = run_on_ray(lambda: self._kind.small_experiment(deepcopy(self._part)), workers)
            where = base.first_difference(outcome)
            if where:
                return f"makes a run on Ray with {workers} worker{'s' * (workers > 1)} differ {where}"
        return None

    def _run_small(self, **how: int) -> Outcome:
        return run_small_experiment(lambda: self._kind.small_experiment(deepcopy(self._part)), **how)

    def _start_tester(self, **how: int) -> Tester:
        return self._kind.tester(deepcopy(self._part), **how)

    def _start_usual(self, **how: int) -> Tester:
        return self._kind.tester(self._kind.make(self._usual), **how)


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
