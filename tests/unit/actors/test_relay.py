"""The relay: a repeated call for events returns the same events, and the run waits for an answer only if it must."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.server.relay import Audience, Relay
from fedraa.callbacks.callback_list import CallbackList
from fedraa.errors import CallbackRaised

COMMIT, EVAL = "commit", "eval"


def make_relay() -> Relay:
    return Relay(CallbackList([]), Audience(frozenset({COMMIT, EVAL}), frozenset({EVAL})))


def test_a_repeated_call_returns_the_same_events() -> None:
    relay = make_relay()
    relay.tell({"kind": COMMIT, "seq": 1})
    first = relay.take_events(1, None, 0.0)
    relay.tell({"kind": COMMIT, "seq": 2})
    assert relay.take_events(1, None, 0.0) == first == [{"kind": COMMIT, "seq": 1}]
    assert relay.take_events(2, None, 0.0) == [{"kind": COMMIT, "seq": 2}]
    assert relay.take_events(3, None, 0.0) == []


def test_a_repeated_call_does_not_answer_the_event_that_it_returns() -> None:
    """The run waits until the driver has seen the event, not until the driver's lost call is repeated."""
    relay = make_relay()
    with ThreadPoolExecutor() as threads:
        run = threads.submit(relay.tell, {"kind": EVAL, "seq": 1})
        events = relay.take_events(1, None, 5.0)
        assert relay.take_events(1, None, 5.0) == events == [{"kind": EVAL, "seq": 1}]
        assert not run.done()
        assert relay.take_events(2, "stopper", 0.0) == []
        assert run.result(timeout=5.0) == "stopper"


def test_a_failed_callback_releases_the_run() -> None:
    relay = make_relay()
    with ThreadPoolExecutor() as threads:
        run = threads.submit(relay.tell, {"kind": EVAL})
        relay.take_events(1, None, 5.0)
        relay.fail()
        with pytest.raises(CallbackRaised):
            run.result(timeout=5.0)
