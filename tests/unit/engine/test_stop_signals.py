"""Ctrl-C and SIGTERM in one process: the request to stop, the exceptions, and the restored handlers."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedraa.engine.stop_signals import defer_interrupts, ignore_interrupts, stop_on_interrupt, stop_on_sigterm


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


def test_sigterm_requests_a_stop_and_its_handler_is_restored() -> None:
    asked: list[bool] = []
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_sigterm(lambda: asked.append(True)):
        signal.raise_signal(signal.SIGTERM)
    assert asked == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_ignore_interrupts_ignores_ctrl_c_and_restores_the_handler() -> None:
    with ignore_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
        with stop_on_interrupt(lambda: None), stop_on_sigterm(lambda: None), ignore_interrupts(), defer_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    with ThreadPoolExecutor(1) as pool:
        pool.submit(inside).result()
