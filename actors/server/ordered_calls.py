"""Calls of an actor that take effect once and in order, although Ray may lose, repeat and reorder their messages.

Ray repeats a lost call after later calls have been made, and cannot know if the lost call took effect. Therefore every
message carries all calls that have no answer yet, with their numbers:

    caller:  send [k, ..., n]      # n is the new call, k the first one without an answer
    actor:   for each call in the message, in order:
                 if its number > the last number: make it, and keep its answer
             return the kept answer of call n
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from actors import runtime
from actors.ray_versions import AnyRef


@dataclass(frozen=True)
class NumberedCall:
    """A call of a method; the numbers of an actor's calls are 1, 2, 3, ..."""

    number: int
    method: str
    args: tuple[Any, ...]


class OrderedCaller:
    """The caller's side. No other process may call the same actor in order.

    Args:
        actor: An actor with the method `run_calls`, which passes its argument to `OrderedReceiver.run`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._number = 0
        self._unanswered: dict[AnyRef, NumberedCall] = {}

    def call(self, method: str, *args: Any) -> AnyRef:
        """Call a method of the actor and return the reference of its answer."""
        if self._unanswered:
            waiting = list(self._unanswered)
            for answered in runtime.wait(waiting, num_returns=len(waiting), timeout=0)[0]:
                del self._unanswered[answered]
        self._number += 1
        call = NumberedCall(self._number, method, args)
        ref: AnyRef = self._actor.run_calls.remote([*self._unanswered.values(), call])
        self._unanswered[ref] = call
        return ref


@dataclass
class OrderedReceiver:
    """The actor's side. It keeps the answer of every call until the caller has received the answer."""

    last: int = 0
    answers: dict[int, Any] = field(default_factory=dict)

    def run(self, actor: object, calls: Sequence[NumberedCall]) -> Any:
        """Make those calls of a message that have not been made, and return the answer of its last call.

        The answer is None if the caller has received it before, because the message is then a late copy.
        """
        for number in [number for number in self.answers if number < calls[0].number]:
            del self.answers[number]
        for call in calls:
            if call.number > self.last:
                self.answers[call.number] = getattr(actor, call.method)(*call.args)
                self.last = call.number
        return self.answers.get(calls[-1].number)
