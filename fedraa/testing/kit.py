"""The check of a component. It tests each promise (rule for components) in small runs or with a drive (test caller)."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from fedraa.testing.client_drives import PIECES
from fedraa.testing.cost import check_memory, describe_cost
from fedraa.testing.drive import COVERED, GIVEN, Drive, collect_answers
from fedraa.testing.findings import Findings
from fedraa.testing.infer_type import identify_component
from fedraa.testing.kinds import Kind
from fedraa.testing.other_process import can_travel, digest_elsewhere
from fedraa.testing.trial import Outcome, drop_speed_effects, play_on_ray, play_trial, round_trip

# Number of decisions that a drive (test caller) requests from a component.
STEPS = 24
# To check that a state can be restored, it is saved after each of these numbers of decisions.
CUTS = (1, 4, 6, 11)
# Number of interruptions of a run in the check that a resumed run equals an uninterrupted one.
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
"""A sentence about a broken promise, without its subject (the component), or None if the promise holds."""


def check(part: object, *, as_: str | None = None, ray: bool = False) -> Findings:
    """Check in small runs, within seconds, that a component keeps the promises on which fedraa's runs rely.

        fedraa.check("my_ext:HighestLoss")
        assert fedraa.check(MyWeight(0.3)).held

    These are the promises. A run with the component gives the same bits with one worker and with two, in another
    process, and if other code draws from the global random generators. It also gives the same bits if it is killed and
    resumed. The component never changes its arguments, or coordinates that no client trained. It holds at most the
    memory that it declares.

    If a promise is broken, checks that depend on it are skipped. The check also compares the cost of the component with
    the cost of a built-in component of the same kind. No cost is a failure.

    Args:
        part: The component in any form: an object, a class, a function, or text such as "my_ext:Trim(share=0.1)".
        as_: The kind of the component, such as "staleness", if it cannot be inferred, for example for a function.
        ray: True to also run the component on Ray.

    Returns a Findings object. Its repr has a line for each promise, and `held` and `failures` give the result.

    Raises ValueError for an object that is not a component, or that may be of several kinds if `as_` does not name one.
    """
    kind, component = identify_component(part, as_)
    name: str = getattr(component, "__qualname__", None) or type(component).__qualname__
    findings = Findings(name.rpartition(".")[2])
    _ComponentCheck(kind, component, findings).check_all(ray=ray)
    return findings


class _ComponentCheck:
    """The check of one component. Every run and every drive (test caller) gets a fresh copy of the component."""

    def __init__(self, kind: Kind, part: Any, findings: Findings) -> None:
        self._kind = kind
        self._part = deepcopy(part)
        self._findings = findings

    def check_all(self, *, ray: bool) -> None:
        """Check all promises. After a failure, skip the checks that depend on the broken promise."""
        record = self._findings.record
        try:
            _, drive = collect_answers(self._start_drive, STEPS)
            self._base = self._play_trial()
        # A user-defined component may raise any exception.
        except Exception as error:
            record(RUNS, f"fails with {_format_error(error)}")
            return
        record(RUNS, None)
        sound = True
        for promise, look in self._list_checks(drive, ray):
            if sound:
                sound = record(promise, look())
            else:
                self._findings.lines.append((promise, LATER))
        if drive.covers:
            record(COVERED, drive.broken.get(COVERED))
        if drive.pieces:
            record(PIECES, drive.broken.get(PIECES))
        for promise in drive.further:
            record(promise, drive.broken.get(promise))
        if drive.claimed_bytes() is not None:
            record(MEMORY, check_memory(self._start_drive))
        self._findings.lines.append(("costs", describe_cost(self._start_drive, self._start_usual, self._kind.usual)))

    def _list_checks(self, drive: Drive, ray: bool) -> list[tuple[str, Callable[[], Verdict]]]:
        chain = [(GIVEN, lambda: drive.broken.get(GIVEN)), (SEEDED, self._check_seeds), (WORKERS, self._check_workers)]
        if drive.stateful:
            chain.append((STATE, self._check_state))
        else:
            chain.append((ARGUMENTS, self._check_arguments))
        chain.append((RESUMED, self._check_resumption))
        # This check comes late, because other processes take seconds to start and a failed check skips the later ones.
        if can_travel(self._kind, self._part):
            chain.append((PROCESS, self._check_elsewhere))
        if ray:
            chain.append((RAY, self._on_ray))
        return chain

    def _check_seeds(self) -> Verdict:
        self._again = self._base.first_difference(self._play_trial(seed=1, workers=2))
        if self._again is None:
            return None
        where = self._base.first_difference(self._play_trial())
        if where:
            return (
                f"makes two equal runs differ {where}: it draws numbers that no seed determines, or keeps state "
                "outside its attributes, such as in a global variable"
            )
        where = self._base.first_difference(self._play_trial(seed=1))
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
            drive, again = self._start_drive(), self._start_drive()
            for k in range(cut):
                drive.step(k)
            try:
                again.restore(round_trip(drive.state()))
            # A user-defined component may raise any exception.
            except Exception as error:
                return f"cannot be restored from its state after {cut} decisions: {_format_error(error)}"
            for k in range(cut, STEPS):
                if drive.step(k) != again.step(k):
                    return (
                        f"makes another decision {k} if it was restored from its state after decision {cut}: state() "
                        "omits a value, or restore() does not restore it"
                    )
        return None

    def _check_arguments(self) -> Verdict:
        forth, _ = collect_answers(self._start_drive, STEPS)
        drive = self._start_drive()
        back = [drive.step(k) for k in reversed(range(STEPS))]
        if forth == back[::-1]:
            return None
        return "gives other answers if the calls have another order; let it depend only on its arguments"

    def _check_resumption(self) -> Verdict:
        try:
            where = self._base.first_difference(self._play_trial(pauses=PAUSES, events=len(self._base.events)))
        # A user-defined component may raise any exception.
        except Exception as error:
            return f"fails when its run is killed and resumed, with {_format_error(error)}"
        if where:
            return f"makes a run differ {where} after it is killed and resumed"
        return None

    def _on_ray(self) -> Verdict:
        base = drop_speed_effects(self._base)
        for workers in (1, 2):
            outcome = play_on_ray(lambda: self._kind.trial(deepcopy(self._part)), workers)
            where = base.first_difference(outcome)
            if where:
                return f"makes a run on Ray with {workers} worker{'s' * (workers > 1)} differ {where}"
        return None

    def _play_trial(self, **how: int) -> Outcome:
        return play_trial(lambda: self._kind.trial(deepcopy(self._part)), **how)

    def _start_drive(self, **how: int) -> Drive:
        return self._kind.drive(deepcopy(self._part), **how)

    def _start_usual(self, **how: int) -> Drive:
        return self._kind.drive(self._kind.make(self._kind.usual), **how)


def _format_error(error: Exception) -> str:
    """Return the type and the text of an exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
