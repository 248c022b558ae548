"""Ctrl-C, SIGTERM and SIGHUP in one process: the request to stop, the exceptions, and the restored handlers."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedraa.engine.stop_signals import (
    TERMINATION,
    defer_interrupts,
    ignore_interrupts,
    stop_on_interrupt,
    stop_on_termination,
)


def test_first_ctrl_c_requests_a_stop_and_the_second_interrupts() -> None:
    asked: list[bool] = []

    def twice() -> None:
        with stop_on_interrupt(lambda: asked.append(True)):
            signal.raise_signal(signal.SIGINT)
            assert asked == [True]
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert asked == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigint_handler_of_the_user_is_kept() -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        with stop_on_interrupt(lambda: caught.append(-1)):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == [signal.SIGINT]


@pytest.mark.parametrize("number", TERMINATION)
def test_termination_requests_the_innermost_stop_and_the_handlers_are_restored(number: signal.Signals) -> None:
    asked: list[str] = []
    before = signal.getsignal(number)
    with stop_on_termination(lambda: asked.append("command")), stop_on_termination(lambda: asked.append("run")):
        signal.raise_signal(number)
    assert asked == ["run"]
    assert signal.getsignal(number) is before


def test_sighup_keeps_a_handler_of_the_user_and_stays_ignored_by_nohup() -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: caught.append(number))
    try:
        with stop_on_termination(lambda: caught.append(-1)):
            signal.raise_signal(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_on_termination(lambda: caught.append(-1)):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert caught == [signal.SIGHUP]


@pytest.mark.parametrize("number", [signal.SIGINT, *TERMINATION])
def test_ignore_interrupts_ignores_a_signal_and_restores_its_handler(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with ignore_interrupts():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_defer_interrupts_raises_after_the_block() -> None:
    made: list[str] = []

    def make() -> None:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            made.append("whole")
        made.append("more")

    with pytest.raises(KeyboardInterrupt):
        make()
    assert made == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_defer_interrupts_defers_sighup_and_a_failure_of_the_block_does_not_lose_it() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    def fail() -> None:
        with stop_on_termination(stop), defer_interrupts():
            signal.raise_signal(signal.SIGHUP)
            raise RuntimeError("the block failed")

    before = signal.getsignal(signal.SIGHUP)
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert signal.getsignal(signal.SIGHUP) is before


def test_second_ctrl_c_interrupts_defer_interrupts_immediately() -> None:
    def make() -> None:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("it was heard too late")

    with pytest.raises(KeyboardInterrupt):
        make()


def test_other_threads_do_not_change_signal_handlers() -> None:
    def inside() -> None:
        with (
            stop_on_interrupt(lambda: None),
            stop_on_termination(lambda: None),
            ignore_interrupts(),
            defer_interrupts(),
        ):
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    with ThreadPoolExecutor(1) as pool:
        pool.submit(inside).result()
