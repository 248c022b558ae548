"""Worker actors behind the pool's interface: queues of two calls, earliest due first; the dead are replaced."""

import heapq
import logging
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from actors.blocks import Blocks
from actors.jobs import Packer
from actors.patience import Patience
from actors.worker import Worker
from fedraa.loop import ATTEMPTS, RunFailed
from fedraa.messages import Evaluation, Fault, Task, Update, Vector

DEPTH = 2  # calls queued on a worker: one in training, one already there when it ends
GROUP_SECONDS = 0.1  # of training in one call, of more than one task: a call costs milliseconds
GROUP_BYTES = 32 * 2**20  # of answers to one call
DEATHS = 3  # of a worker, one after another with nothing done in between, before it is given up
GLANCE = 1.0  # seconds between two looks at who has hung
DIED = "worker died"
START, TRAIN, EVALUATE = "start", "train", "evaluate"

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Call:
    """A call to a worker: to start, to train `tasks`, or for an evaluation."""

    kind: str
    seat: "_Seat"
    ref: ray.ObjectRef[Any]
    work: float = 1.0
    tasks: list[Task] = field(default_factory=list)
    evaluation: "PendingEvaluation | None" = None


@dataclass(eq=False)
class _Seat:
    """A worker actor and the calls that are out to it, the one under way first, since `since` (monotonic)."""

    number: int
    actor: Any
    deaths: int
    since: float = field(default_factory=time.monotonic)
    calls: deque[_Call] = field(default_factory=deque)


@dataclass
class PendingEvaluation:
    """An evaluation on the emptiest worker; if that one dies, on another."""

    pool: "RayPool"
    params: ray.ObjectRef[Any]
    evaluation: Evaluation | None = None
    failures: int = 0

    def result(self, timeout: float) -> Evaluation | None:
        give_up = time.monotonic() + timeout
        while self.evaluation is None and self.pool.receive(give_up):
            pass
        return self.evaluation


@dataclass
class RayPool:
    """Trains tasks on worker actors; equal outcomes whichever worker trains which task.

    Short tasks travel in groups, by the pace seen last, where many wait. A worker that dies or hangs is replaced:
    the task that it was at comes back as a fault, those that waited behind it go to other workers. If it was at a
    group, or one of a group erred, nobody knows yet which task is to blame: each goes again, alone. A worker that
    dies `DEATHS` times in a row is given up; without any left, RunFailed.
    """

    recipe: ray.ObjectRef[Any]
    blocks: Blocks
    evaluation_data: ray.ObjectRef[Any]
    workers: int
    threads: int
    device: str
    gpus: float
    worker: type[Worker] = Worker
    patience: Patience = field(default_factory=Patience)
    _seats: dict[int, _Seat] = field(default_factory=dict)
    _waiting: list[tuple[float, int]] = field(default_factory=list)
    _tasks: dict[int, tuple[Task, float]] = field(default_factory=dict)
    _calls: dict[ray.ObjectRef[Any], _Call] = field(default_factory=dict)
    _outcomes: dict[int, Update | Fault] = field(default_factory=dict)
    _faults: deque[Fault] = field(default_factory=deque)
    _alone: set[int] = field(default_factory=set)
    _pace: float = math.inf
    _last: str = ""

    def __post_init__(self) -> None:
        self._packer = Packer(self.blocks)
        for number in range(self.workers):
            self._spawn(number, deaths=0)

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = (task, due)
        self._packer.expect(task)
        heapq.heappush(self._waiting, (due, task.id))
        self._send()

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        give_up = time.monotonic() + timeout
        while not self._faults and task not in self._outcomes and self.receive(give_up):
            pass
        return self._faults.popleft() if self._faults else self._outcomes.pop(task, None)

    def ready(self, timeout: float) -> list[Update | Fault]:
        if not self._outcomes and not self._faults:
            self.receive(time.monotonic() + timeout)
        outcomes = [*self._faults, *self._outcomes.values()]
        self._faults.clear()
        self._outcomes.clear()
        return outcomes

    def evaluate(self, params: Vector) -> PendingEvaluation:
        pending = PendingEvaluation(self, ray.put(params))
        self._start(pending)
        return pending

    def busy(self) -> tuple[int, int]:
        return sum(bool(seat.calls) for seat in self._seats.values()), len(self._seats)

    def close(self) -> None:
        for seat in self._seats.values():
            ray.kill(seat.actor)
        self._seats.clear()

    def receive(self, give_up: float) -> bool:
        """Takes in a call that has ended and looks for the hung; waits up to the time `give_up` (monotonic).

        False if that time has come.
        """
        if not self._seats:
            raise RunFailed(f"no worker is left, {self.workers} died {DEATHS} times in a row; the last: {self._last}")
        left = give_up - time.monotonic()
        timeout = min(GLANCE, max(0.0, left))
        if not self._calls:
            time.sleep(timeout)
            return left > 0
        ended, _ = ray.wait(list(self._calls), num_returns=1, timeout=timeout)
        for ref in ended:
            self._end(self._calls[ref])
        for seat in list(self._seats.values()):
            self._check(seat)
        self._send()
        return bool(ended) or left > 0

    def _spawn(self, number: int, deaths: int) -> None:
        actor = ray.remote(self.worker).options(num_cpus=self.threads, num_gpus=self.gpus)
        seat = _Seat(number, actor.remote(number, self.recipe, self.threads, self.device), deaths)
        self._seats[number] = seat
        self._call(_Call(START, seat, seat.actor.started.remote()))

    def _call(self, call: _Call) -> None:
        if not call.seat.calls:
            call.seat.since = time.monotonic()
        call.seat.calls.append(call)
        self._calls[call.ref] = call

    def _emptiest(self) -> _Seat | None:
        return min(self._seats.values(), key=lambda seat: len(seat.calls), default=None)

    def _send(self) -> None:
        """Fills the queues of the workers, the emptiest first, with the tasks that are due first."""
        while self._waiting and (seat := self._emptiest()) is not None and len(seat.calls) < DEPTH:
            tasks = self._group()
            jobs, beside = self._packer.pack(tasks)
            ref = seat.actor.train_all.remote(jobs, *beside)
            self._call(_Call(TRAIN, seat, ref, work=sum(map(self._work, tasks)), tasks=tasks))

    def _group(self) -> list[Task]:
        """The task that is due first and, if they are short, some of the next; they wait no more."""
        share = len(self._waiting) // (DEPTH * len(self._seats))
        tasks: list[Task] = []
        seconds = size = 0.0
        while self._waiting:
            number = self._waiting[0][1]
            task, _ = self._tasks[number]
            seconds += self._pace * self._work(task)
            size += task.params.nbytes
            full = len(tasks) >= share or seconds > GROUP_SECONDS or size > GROUP_BYTES
            if tasks and (full or number in self._alone):
                break
            heapq.heappop(self._waiting)
            tasks.append(task)
            if number in self._alone:
                break
        return tasks

    def _work(self, task: Task) -> float:
        """About proportional to how long it takes."""
        return float(self._packer.samples(task) * task.params.size)

    def _start(self, pending: PendingEvaluation) -> None:
        if (seat := self._emptiest()) is not None:
            ref = seat.actor.evaluate.remote(pending.params, self.evaluation_data)
            self._call(_Call(EVALUATE, seat, ref, evaluation=pending))

    def _end(self, call: _Call) -> None:
        """A call has ended: with a result, an error in what it ran, or the worker's death."""
        seat, result, wrong = call.seat, None, None
        try:
            result = ray.get(call.ref)
        except RayTaskError as error:
            wrong = f"{type(error.cause).__name__}: {_line(str(error.cause), 0)}"
        except RayError as error:
            if seat.calls[0] is not call:  # calls end in order: one ahead ended well, or is what the worker died in
                return self._end(seat.calls[0])
            started = seat.calls[0].kind != START
            return self._bury(seat, DIED if started else f"worker did not start: {_line(str(error), -1)}")
        now = time.monotonic()
        if seat.calls[0] is call:
            if call.kind != START:
                self.patience.saw(call.kind, call.work, now - seat.since)
                seat.deaths = 0
            seat.since = now
        seat.calls.remove(call)
        del self._calls[call.ref]
        self._deliver(call, result, wrong)

    def _check(self, seat: _Seat) -> None:
        """Has this one hung?"""
        if not seat.calls or seat.calls[0].kind == START:
            return
        bound = self.patience.bound(seat.calls[0].kind, seat.calls[0].work)
        if time.monotonic() - seat.since > bound:
            self._bury(seat, f"worker hung: no answer within {bound:.3g} s")

    def _deliver(self, call: _Call, result: Any, wrong: str | None) -> None:
        """The outcome of a call to whom it is for: its result, or what went wrong."""
        seat, tasks = call.seat.number, call.tasks
        if wrong is None:
            self._take_in(call, result)
        elif len(tasks) == 1:
            self._alone.add(tasks[0].id)
            self._settle(tasks[0], Fault(tasks[0].id, seat, wrong))
        else:
            self._faults.append(Fault(None, seat, wrong + (f"; {len(tasks)} tasks go again, alone" if tasks else "")))
            self._alone.update(task.id for task in tasks)
            self._queue(tasks)
            if call.evaluation is not None:
                self._evaluate_again(call.evaluation, wrong)

    def _take_in(self, call: _Call, result: Any) -> None:
        if call.evaluation is not None:
            call.evaluation.evaluation = result
        elif call.tasks:
            for task, update in zip(call.tasks, result, strict=True):
                self._alone.discard(task.id)
                self._settle(task, update)
            self._pace = sum(update.seconds for update in result) / call.work

    def _settle(self, task: Task, outcome: Update | Fault) -> None:
        del self._tasks[task.id]
        self._packer.release(task)
        self._outcomes[task.id] = outcome

    def _queue(self, tasks: list[Task]) -> None:
        for task in tasks:
            heapq.heappush(self._waiting, (self._tasks[task.id][1], task.id))

    def _evaluate_again(self, pending: PendingEvaluation, wrong: str) -> None:
        pending.failures += 1
        if pending.failures == ATTEMPTS:
            raise RunFailed(f"an evaluation failed {ATTEMPTS} times: {wrong}")
        self._start(pending)

    def _bury(self, seat: _Seat, what: str) -> None:
        """Replace a worker that is dead, or as good as dead, unless it dies again and again."""
        ray.kill(seat.actor)
        del self._seats[seat.number]
        self._last = what
        deaths = seat.deaths + 1
        if deaths < DEATHS:
            self._spawn(seat.number, deaths)
        else:
            what += f"; given up after {deaths} deaths in a row"
            logger.warning("worker %d: %s; %d go on", seat.number, what, len(self._seats))
        for call in seat.calls:
            del self._calls[call.ref]
        culprit, *innocent = seat.calls
        self._deliver(culprit, None, what)
        for call in innocent:
            self._queue(call.tasks)
            if call.evaluation is not None:
                self._start(call.evaluation)


def _line(text: str, number: int) -> str:
    """One line of what may be a traceback."""
    return (text.strip().splitlines() or [""])[number].strip()
