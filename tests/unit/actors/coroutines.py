"""Coroutines of blocking code: threads of which one runs at a time, so that a simulation decides their order."""

import threading
from collections.abc import Callable
from typing import Any


class Ended(BaseException):
    """The end of a coroutine whose actor has died."""


class Coroutine:
    """A thread of control. It runs until it waits for a condition of the simulation.

    Args:
        actor: The actor that makes the call; None for the driver and the test.
        turn: The lock that the coroutine's thread acquires in order to run.
    """

    def __init__(self, actor: Any, turn: threading.Lock) -> None:
        self.actor = actor
        self.turn = turn
        self.is_cancelled = self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._is_over: Callable[[], bool] = _at_once
        self.until = 0.0

    @property
    def is_gone(self) -> bool:
        return self.is_cancelled or (self.actor is not None and self.actor.is_dead)

    def check_alive(self) -> None:
        """Raise Ended if the actor has died: a dead process makes no calls."""
        if self.is_gone:
            raise Ended

    def wait_for(self, is_over: Callable[[], bool], until: float) -> None:
        """Wait until the condition holds, or until a time."""
        self._is_over = is_over
        self.until = until
        _waiting.append(self)

    @property
    def latest(self) -> float:
        """The time at which the coroutine continues at the latest."""
        if self.actor is None:
            return self.until
        return max(self.until, self.actor.frozen_until)

    def can_run(self, now: float) -> bool:
        if self.is_gone:
            return True
        if self.actor is not None and self.actor.is_frozen:
            return False
        return now >= self.until or self._is_over()


class _Thread:
    """A thread that runs one coroutine after another."""

    def __init__(self) -> None:
        self.turn = _acquired_lock()
        self.simulation: Any = None
        self.function: Callable[[], Any] = _at_once
        self.coroutine = Coroutine(None, self.turn)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.turn.acquire()
            coroutine = self.coroutine
            try:
                coroutine.check_alive()
                coroutine.result = self.function()
            # The test examines the error of a coroutine.
            except BaseException as error:
                coroutine.error = error
            coroutine.is_done = True
            _idle.append(self)
            _wake_next(self.simulation, None)


def _at_once() -> bool:
    return True


def _acquired_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


_waiting: list[Coroutine] = []
_idle: list[_Thread] = []
_running: list[Coroutine] = [Coroutine(None, _acquired_lock())]


def current() -> Coroutine:
    """Return the coroutine that runs."""
    return _running[0]


def start_coroutine(simulation: Any, function: Callable[[], Any], actor: Any = None) -> Coroutine:
    """Begin a coroutine that calls a function. It runs when the current coroutine waits."""
    thread = _idle.pop() if _idle else _Thread()
    thread.simulation = simulation
    thread.function = function
    thread.coroutine = Coroutine(actor, thread.turn)
    thread.coroutine.wait_for(_at_once, 0.0)
    return thread.coroutine


def run_others(simulation: Any) -> None:
    """Run other coroutines, and the events of the simulation, until the current coroutine can run again."""
    _wake_next(simulation, current())


def end_coroutines(simulation: Any) -> None:
    """End all coroutines except the current one."""
    others = list(_waiting)
    for coroutine in others:
        coroutine.is_cancelled = True
    current().wait_for(lambda: all(coroutine.is_done for coroutine in others), float("inf"))
    run_others(simulation)


def _wake_next(simulation: Any, coroutine: Coroutine | None) -> None:
    """Let the next coroutine run, and wait for the turn of this one. None is a coroutine that has ended."""
    while True:
        for number, candidate in enumerate(_waiting):
            if candidate.can_run(simulation.now):
                del _waiting[number]
                _running[0] = candidate
                if candidate is not coroutine:
                    candidate.turn.release()
                    if coroutine is not None:
                        coroutine.turn.acquire()
                return
        simulation.act(min(waiting.latest for waiting in _waiting))
