"""Calls of an actor that are executed once and in order, although Ray may lose, repeat and reorder messages.

Ray cannot know if the actor executed a lost call. Therefore every call has a number, and every message contains all
calls that have no answer yet:

    caller:  send [k, ..., n]      # n is the new call, k is the first call without an answer
    actor:   for each call in the message, in order:
                 if its number > number of the last executed call: execute it and store its answer
             return the stored answer of call n
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from actors import runtime
from actors.ray_versions import AnyRef


@dataclass(frozen=True)
class NumberedCall:
    """A call of an actor's method.

    Attributes:
        number: The number of the call: 1, 2, 3, ...
        method: The name of the method.
        args: The arguments.
    """

    number: int
    method: str
    args: tuple[Any, ...]


class OrderedCaller:
    """The caller's side of ordered calls. An actor can have only one OrderedCaller.

    Args:
        actor: An actor with the method `run_calls`, which calls `OrderedReceiver.run`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._number = 0
        self._unanswered: dict[AnyRef, NumberedCall] = {}

    def call(self, method: str, *args: Any) -> AnyRef:
        """Call a method of the actor, and return the reference of the answer."""
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
    """The actor's side of ordered calls. It stores each answer until the caller has received it.

    Attributes:
        last: The number of the last executed call.
        answers: The stored answers by the number of the call.
    """

    last: int = 0
    answers: dict[int, Any] = field(default_factory=dict)

    def run(self, actor: object, calls: Sequence[NumberedCall]) -> Any:
        """Execute the new calls of a message, and return the answer of the last call.

        Ray may repeat a message whose answer the caller already has. The result is None in this case.

        Args:
            actor: The object that has the called methods.
            calls: The calls of the message.
        """
        for number in [number for number in self.answers if number < calls[0].number]:
            del self.answers[number]
        for call in calls:
            if call.number > self.last:
                self.answers[call.number] = getattr(actor, call.method)(*call.args)
                self.last = call.number
        return self.answers.get(calls[-1].number)
