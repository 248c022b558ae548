"""Worker actors behind the pool's interface: queues of two, earliest due first; the dead are replaced."""

import heapq
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from actors.blocks import Blocks
from actors.worker import Worker
from fedraa.messages import Evaluation, Fault, Task, Update, Vector

DEPTH = 2  # tasks queued on a worker: one in training, one already there when it ends
NOTHING: Vector = np.empty(0, np.float32)


@dataclass
class _Seat:
    """A worker actor and how many calls are out to it."""

    number: int
    actor: Any
    calls: int = 0


@dataclass
class _Shared:
    """A buffer in the object store and how many tasks still need it."""

    buffer: Vector
    ref: ray.ObjectRef[Any]
    uses: int = 0


@dataclass
class RayPool:
    """Trains tasks on worker actors; equal outcomes whichever worker trains which task.

    One buffer is put into the object store once, however many tasks carry it.
    """

    recipe: ray.ObjectRef[Any]
    blocks: Blocks
    evaluation_data: ray.ObjectRef[Any]
    workers: int
    threads: int
    device: str
    gpus: float
    _seats: list[_Seat] = field(default_factory=list)
    _waiting: list[tuple[float, int]] = field(default_factory=list)
    _tasks: dict[int, Task] = field(default_factory=dict)
    _calls: dict[ray.ObjectRef[Any], tuple[int, _Seat]] = field(default_factory=dict)
    _outcomes: dict[int, Update | Fault] = field(default_factory=dict)
    _shared: dict[int, _Shared] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seats = [_Seat(number, self._spawn()) for number in range(self.workers)]

    def _spawn(self) -> Any:
        actor = ray.remote(Worker).options(num_cpus=self.threads, num_gpus=self.gpus)
        return actor.remote(self.recipe, self.threads, self.device)

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = task
        shared = self._shared.get(id(task.params))
        if shared is None:
            shared = self._shared[id(task.params)] = _Shared(task.params, ray.put(task.params))
        shared.uses += 1
        heapq.heappush(self._waiting, (due, task.id))
        self._send()

    def wait(self, task: int) -> Update | Fault:
        while task not in self._outcomes:
            self._receive(None)
        return self._outcomes.pop(task)

    def ready(self, timeout: float) -> list[Update | Fault]:
        if not self._outcomes:
            self._receive(timeout)
        outcomes = list(self._outcomes.values())
        self._outcomes.clear()
        return outcomes

    def evaluate(self, params: Vector) -> "_Evaluation":
        return _Evaluation(self, ray.put(params))

    def close(self) -> None:
        for seat in self._seats:
            ray.kill(seat.actor)

    def _send(self) -> None:
        """Fills the queues of the workers, the emptiest first, with the tasks that are due first."""
        while self._waiting and (seat := min(self._seats, key=lambda seat: seat.calls)).calls < DEPTH:
            _, number = heapq.heappop(self._waiting)
            task = self._tasks[number]
            call = seat.actor.train.remote(
                replace(task, params=NOTHING),
                self._shared[id(task.params)].ref,
                *self.blocks.find(task.client),
            )
            seat.calls += 1
            self._calls[call] = (number, seat)

    def _receive(self, timeout: float | None) -> None:
        """Takes in the calls that have ended; waits for one up to `timeout` seconds (None: as long as it takes)."""
        ended, _ = ray.wait(list(self._calls), num_returns=1, timeout=timeout)
        for call in ended:
            number, seat = self._calls.pop(call)
            seat.calls -= 1
            self._outcomes[number] = self._outcome(call, number, seat)
            task = self._tasks.pop(number)
            shared = self._shared[id(task.params)]
            shared.uses -= 1
            if not shared.uses:
                del self._shared[id(task.params)]
        self._send()

    def _outcome(self, call: ray.ObjectRef[Any], number: int, seat: _Seat) -> Update | Fault:
        try:
            update: Update = ray.get(call)
        except RayActorError:
            if self._seats[seat.number] is seat:
                self._seats[seat.number] = _Seat(seat.number, self._spawn())
            return Fault(number, seat.number, "worker died")
        except RayTaskError as error:
            return Fault(number, seat.number, str(error.cause).strip().split("\n")[0])
        return update


class _Evaluation:
    """An evaluation on the emptiest worker; if that one dies, on another."""

    def __init__(self, pool: RayPool, params: ray.ObjectRef[Any]) -> None:
        self._pool, self._params = pool, params
        self._start()

    def _start(self) -> None:
        seat = min(self._pool._seats, key=lambda seat: seat.calls)
        self._call = seat.actor.evaluate.remote(self._params, self._pool.evaluation_data)

    def done(self) -> bool:
        return bool(ray.wait([self._call], timeout=0)[0])

    def result(self) -> Evaluation:
        while True:
            try:
                evaluation: Evaluation = ray.get(self._call)
            except RayActorError:
                self._start()
            else:
                return evaluation
