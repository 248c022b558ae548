"""Messages that are lost, repeated and reordered: every call takes effect once, in order, and has its own answer."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actors import runtime
from actors.server.ordered_calls import NumberedCall, OrderedCaller, OrderedReceiver
from fedraa.server.stores.sharded import Shard


class Network:
    """A stand-in for Ray and one actor. A test decides which messages arrive, and whose answers arrive."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.answers: dict[int, int] = {}
        self.messages: list[list[NumberedCall]] = []
        self.run_calls = SimpleNamespace(remote=self._send)
        self._receiver = OrderedReceiver()

    def make(self, number: int) -> int:
        self.made.append(number)
        return number * number

    def deliver(self, ref: int, *, answered: bool) -> None:
        answer = self._receiver.run(self, self.messages[ref])
        # The caller ignores the answers of late copies.
        if answered and ref not in self.answers:
            self.answers[ref] = answer

    def wait(self, refs: Sequence[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return [ref for ref in refs if ref in self.answers], []

    def _send(self, calls: list[NumberedCall]) -> int:
        self.messages.append(calls)
        return len(self.messages) - 1


@given(events=st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 30), st.booleans())), max_size=60))
def test_every_call_is_made_once_and_in_order(events: list[tuple[int, bool] | None]) -> None:
    """An event is a new call, or the arrival of a message, whose answer arrives or is lost."""
    network = Network()
    caller = OrderedCaller(network)
    sent = 0
    with mock.patch.object(runtime, "wait", network.wait):
        for event in events:
            if event is None:
                assert caller.call("make", sent) == sent
                sent += 1
            elif event[0] < sent:
                network.deliver(event[0], answered=event[1])
        # Ray repeats the messages without an answer, here in the worst order.
        for ref in reversed(range(sent)):
            if ref not in network.answers:
                network.deliver(ref, answered=True)
    assert network.made == list(range(sent))
    assert network.answers == {number: number * number for number in range(sent)}


def test_answered_calls_do_not_accumulate_in_messages_or_memory() -> None:
    network = Network()
    caller = OrderedCaller(network)
    with mock.patch.object(runtime, "wait", network.wait):
        for number in range(100):
            network.deliver(caller.call("make", number), answered=True)
    assert {len(calls) for calls in network.messages} == {1}
    assert len(network._receiver.answers) == 1


def test_repeated_push_counts_once_and_late_push_is_discarded() -> None:
    shard = Shard(np.zeros(2, np.float32), [np.arange(2)], norms=False)
    sent, new = np.zeros(2, np.float32), np.ones(2, np.float32)
    receipts: list[Any] = [shard.receive(3, "a", sent, new) for _ in range(2)]
    assert receipts[0] == receipts[1]
    assert shard.pushes == 1
    shard.mix(0, 3, "a", 0.5)
    shard.receive(3, "a", sent, new)
    shard.forget_task(4)
    shard.receive(4, "b", sent, new)
    assert (shard.pushes, shard._pushed) == (1, {})
    np.testing.assert_array_equal(shard.params, [0.5, 0.5])
