"""Worker actors behind the pool's interface: two calls on each, the task due first in front; the dead are replaced."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

import ray
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from actors.blocks import Blocks, put_blocks
from actors.host import Hosts
from actors.jobs import Packer
from actors.patience import Patience
from actors.placement import worker_options
from actors.queues import Queues
from actors.seats import EVALUATE, FIRST, LOAD, START, TRAIN, Call, PendingEvaluation, Seat
from actors.worker import Worker
from fedraa.assembly import Assembly
from fedraa.crews import Crew
from fedraa.loop import ATTEMPTS, RunFailed
from fedraa.messages import Fault, Index, Task, Update, Vector

DEPTH = 2  # calls queued on a worker: one in training, one already there when it ends
DEATHS = 3  # of a worker, one after another with nothing done in between, before it is given up
GLANCE = 1.0  # seconds between two looks at who has hung
DIED = "worker died"

logger = logging.getLogger(__name__)


@dataclass
class RayPool:
    """Trains tasks on worker actors; equal outcomes whichever worker trains which task.

    A worker that dies or hangs is replaced: the task that it was at comes back as a fault, those that waited behind
    it go to other workers. If it was at a group, or one of a group erred, nobody knows yet which task is to blame:
    each goes again, alone. A worker that dies `DEATHS` times in a row is given up; without any left in a crew,
    RunFailed.

    Workers that have not started, for want of resources, get no work; the others go on without them. The tasks of
    client n go to the workers of crew `crew_of[n]` alone (None: there is one crew). With `hosts`, every node reads
    its own shards. Whenever something has gone wrong, `check` may raise if the fault is not a worker's.
    """

    recipe: ray.ObjectRef[Any]
    blocks: Blocks
    evaluation_data: ray.ObjectRef[Any]
    crews: tuple[Crew, ...]
    threads: int
    device: str
    placement: str
    stack: int = 1
    crew_of: Index | None = None
    worker: type[Worker] = Worker
    patience: Patience = field(default_factory=Patience)
    hosts: Hosts | None = None
    check: Callable[[], None] | None = None
    _seats: dict[int, Seat] = field(default_factory=dict)
    _evaluations: deque[PendingEvaluation] = field(default_factory=deque)
    _calls: dict[ray.ObjectRef[Any], Call] = field(default_factory=dict)
    _outcomes: dict[int, Update | Fault] = field(default_factory=dict)
    _faults: deque[Fault] = field(default_factory=deque)
    _last: str = ""

    @classmethod
    def of(cls, assembly: Assembly, **given: Any) -> Self:
        """The pool of a run with the fields that are `given`, `crews` at least: its workers start."""
        experiment = assembly.experiment
        if "blocks" not in given:
            given["blocks"] = put_blocks(assembly.data)
        return cls(
            recipe=ray.put(assembly.recipe),
            evaluation_data=ray.put(assembly.data),
            threads=experiment.threads_per_worker,
            device=experiment.device,
            placement=experiment.placement,
            stack=experiment.stack,
            **given,
        )

    def __post_init__(self) -> None:
        self.workers = sum(crew.workers for crew in self.crews)
        self._packer = Packer(self.blocks)
        self._queues = Queues(len(self.crews), self.crew_of, self._work, self.stack)
        numbers = count()
        for number, crew in enumerate(self.crews):
            for _ in range(crew.workers):
                self._spawn(next(numbers), number, deaths=0)

    def share(self, params: Vector) -> Vector:
        return self._packer.share(params)

    def submit(self, task: Task, due: float) -> None:
        self._packer.expect(task)
        self._queues.submit(task, due)
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
        pending = PendingEvaluation(self.receive, ray.put(params))
        self._evaluations.append(pending)
        self._send()
        return pending

    def busy(self) -> tuple[int, int]:
        ready = self._ready()
        return sum(bool(seat.calls) for seat in ready), len(ready)

    def close(self) -> None:
        for seat in self._seats.values():
            ray.kill(seat.actor)
        self._seats.clear()
        if self.hosts is not None:
            self.hosts.close()

    def receive(self, give_up: float) -> bool:
        """Takes in a call that has ended and looks for the hung; waits up to the time `give_up` (monotonic).

        False if that time has come.
        """
        for number, crew in enumerate(self.crews):
            if all(seat.crew != number for seat in self._seats.values()):
                whose = f" for tier {number + 1}" if len(self.crews) > 1 else ""
                raise RunFailed(
                    f"no worker is left{whose}, {crew.workers} died {DEATHS} times in a row; the last: {self._last}"
                )
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

    def _spawn(self, number: int, crew: int, deaths: int) -> None:
        needs = self.crews[crew].needs
        actor = ray.remote(self.worker).options(**worker_options(self.crews[crew], self.placement))
        device = "cpu" if self.device == "auto" and not needs.get("GPU") else self.device
        seat = Seat(number, crew, actor.remote(number, self.recipe, self.threads, device), deaths)
        self._seats[number] = seat
        self._call(Call(START, seat, seat.actor.started.remote()))

    def _call(self, call: Call) -> None:
        if not call.seat.calls:
            call.seat.since = time.monotonic()
        call.seat.calls.append(call)
        self._calls[call.ref] = call

    def _ready(self, crew: int | None = None) -> list[Seat]:
        """The workers, of one crew or of all, that have started."""
        return [seat for seat in self._seats.values() if seat.blocks is not None and crew in (None, seat.crew)]

    def _emptiest(self, crew: int | None = None) -> Seat | None:
        return min(self._ready(crew), key=lambda seat: len(seat.calls), default=None)

    def _send(self) -> None:
        """Fills the queues of the workers, the emptiest first, with the tasks that are due first."""
        while self._evaluations and (seat := self._emptiest()) is not None:
            pending = self._evaluations.popleft()
            ref = seat.actor.evaluate.remote(pending.ref, self.evaluation_data)
            self._call(Call(EVALUATE, seat, ref, evaluation=pending))
        for crew in range(len(self.crews)):
            while self._queues.waits(crew) and (seat := self._emptiest(crew)) is not None and len(seat.calls) < DEPTH:
                assert seat.blocks is not None
                tasks = self._queues.take(crew, DEPTH * len(self._ready(crew)))
                jobs, beside = self._packer.pack(tasks, seat.blocks)
                ref = seat.actor.train_all.remote(jobs, *beside)
                self._call(Call(TRAIN, seat, ref, work=sum(map(self._work, tasks)), tasks=tasks))

    def _work(self, task: Task) -> float:
        """About proportional to how long it takes."""
        return float(self._packer.samples(task) * task.params.size)

    def _end(self, call: Call) -> None:
        """A call has ended: with a result, an error in what it ran, or the worker's death."""
        seat, result, wrong = call.seat, None, None
        try:
            result = ray.get(call.ref)
        except RayError as error:
            if self.check is not None:
                self.check()
            lost = isinstance(getattr(error, "cause", error), ObjectLostError)
            if isinstance(error, RayTaskError) and not lost and call.kind not in FIRST:
                wrong = f"{type(error.cause).__name__}: {_line(str(error.cause), 0)}"
            elif seat.calls[0] is not call:  # calls end in order: one ahead ended well, or is what the worker died in
                return self._end(seat.calls[0])
            else:
                if self.hosts is not None and (lost or call.kind == LOAD):
                    self.hosts.drop(seat.node)
                return self._bury(seat, self._cause(call, error))
        now = time.monotonic()
        if seat.calls[0] is call:
            if call.kind not in FIRST:
                self.patience.saw(call.kind, call.work, now - seat.since)
                seat.deaths = 0
            seat.since = now
        seat.calls.remove(call)
        del self._calls[call.ref]
        if call.kind in FIRST and result is not None:
            self._ready_or_load(seat, result)
        self._deliver(call, result, wrong)

    def _cause(self, call: Call, error: RayError) -> str:
        """Why a worker is dead."""
        if call.kind not in FIRST:
            return DIED
        cause = getattr(error, "cause", error)
        return f"worker did not start: {_line(str(cause), -1)}"

    def _ready_or_load(self, seat: Seat, answer: str | Blocks) -> None:
        """A worker has said on which node it is, or its host what blocks there are."""
        if isinstance(answer, Blocks):
            seat.blocks = answer
        elif self.hosts is None:
            seat.node, seat.blocks = answer, self.blocks
        else:
            seat.node = answer
            self._call(Call(LOAD, seat, self.hosts.blocks(answer)))

    def _check(self, seat: Seat) -> None:
        """Has this one hung?"""
        if not seat.calls or seat.calls[0].kind in FIRST:
            return
        bound = self.patience.bound(seat.calls[0].kind, seat.calls[0].work)
        if time.monotonic() - seat.since > bound:
            self._bury(seat, f"worker hung: no answer within {bound:.3g} s")

    def _deliver(self, call: Call, result: Any, wrong: str | None) -> None:
        """The outcome of a call to whom it is for: its result, or what went wrong."""
        seat, tasks = call.seat.number, call.tasks
        if wrong is None:
            self._take_in(call, result)
        elif len(tasks) == 1:
            self._settle(tasks[0], Fault(tasks[0].id, seat, wrong))
        else:
            self._faults.append(Fault(None, seat, wrong + (f"; {len(tasks)} tasks go again, alone" if tasks else "")))
            self._queues.again(tasks, alone=True)
            if call.evaluation is not None:
                self._evaluate_again(call.evaluation, wrong)

    def _take_in(self, call: Call, result: Any) -> None:
        if call.evaluation is not None:
            call.evaluation.evaluation = result
        elif call.tasks:
            for task, update in zip(call.tasks, result, strict=True):
                self._settle(task, update)
            self._queues.saw(sum(update.seconds for update in result), call.work)

    def _settle(self, task: Task, outcome: Update | Fault) -> None:
        self._queues.ended(task, well=isinstance(outcome, Update))
        self._packer.release(task)
        self._outcomes[task.id] = outcome

    def _evaluate_again(self, pending: PendingEvaluation, wrong: str) -> None:
        pending.failures += 1
        if pending.failures == ATTEMPTS:
            raise RunFailed(f"an evaluation failed {ATTEMPTS} times: {wrong}")
        self._evaluations.append(pending)

    def _bury(self, seat: Seat, what: str) -> None:
        """Replace a worker that is dead, or as good as dead, unless it dies again and again."""
        ray.kill(seat.actor)
        del self._seats[seat.number]
        self._last = what
        deaths = seat.deaths + 1
        if deaths < DEATHS:
            self._spawn(seat.number, seat.crew, deaths)
        else:
            what += f"; given up after {deaths} deaths in a row"
            logger.warning("worker %d: %s; %d go on", seat.number, what, len(self._seats))
        for call in seat.calls:
            del self._calls[call.ref]
        culprit, *innocent = seat.calls
        self._deliver(culprit, None, what)
        for call in innocent:
            self._queues.again(call.tasks)
            if call.evaluation is not None:
                self._evaluations.append(call.evaluation)


def _line(text: str, number: int) -> str:
    """One line of what may be a traceback."""
    return (text.strip().splitlines() or [""])[number].strip()
