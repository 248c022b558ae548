"""The program of a worker process, which trains and evaluates for a ProcessExecutor."""

import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from fedraa.client.task_trainer import TaskTrainer
from fedraa.data import Federated
from fedraa.engine.executor import format_error, train_together
from fedraa.engine.shared_memory import Piece, Place, SharedMemory, pack, unpack, write
from fedraa.engine.worker_spec import WorkerSpec, choose_device
from fedraa.errors import InputError, trap_system_exit
from fedraa.evaluation.evaluator import Evaluator
from fedraa.evaluation.personal import EvaluationData
from fedraa.messages import Evaluation, Fault, State, Task, Update, Vector

# The seconds between two checks whether the executor's process is alive.
PARENT_CHECK_SECONDS = 1.0


class Request(NamedTuple):
    """A message to a worker process.

    Attributes:
        body: The place of the pickled call. Only short messages are sent, because a long one would block the executor.
        pieces: The places of the call's large arrays.
        reply: The slot for the large arrays of the answer; None if the answer has none.
    """

    body: Piece
    pieces: list[Piece]
    reply: Place | None


class Answer(NamedTuple):
    """The answer of a worker process to a Request: a pickled object, and the places of its large arrays."""

    body: bytes
    pieces: list[Piece]


class Failure(NamedTuple):
    """The last answer of a worker process that cannot continue.

    Attributes:
        error: The reason.
    """

    error: str


@dataclass(frozen=True, eq=False)
class Start:
    """The first call of a worker process. It answers None when it is ready."""

    worker_spec: WorkerSpec
    data: Federated
    evaluation_data: EvaluationData
    device: str
    threads: int


@dataclass(frozen=True, eq=False)
class Train:
    """A call that trains tasks. The answer is a list with the outcome of each task."""

    tasks: Sequence[Task]


@dataclass(frozen=True, eq=False)
class Evaluate:
    """A call that evaluates a model [d]. The answer is an Evaluation or the error.

    Attributes:
        params: The model.
        kept: The values that clients keep for their personal models.
    """

    params: Vector
    kept: State


class WorkerProcess:
    """The state of a worker process."""

    def __init__(self, number: int, start: Start) -> None:
        torch.set_num_threads(start.threads)
        self._number = number
        self._start = start
        self._device = choose_device(start.device)
        self._trainer: TaskTrainer = start.worker_spec.trainer(self._device)
        self._evaluator: Evaluator | None = None

    def call(self, request: Train | Evaluate) -> list[Update | Fault] | Evaluation | InputError | str:
        """Execute a call and return its answer."""
        if isinstance(request, Train):
            return self._train(request.tasks)
        return self._evaluate(request.params, request.kept)

    def _train(self, tasks: Sequence[Task]) -> list[Update | Fault]:
        outcomes = train_together(self._trainer, self._start.data, tasks, self._number)
        if outcomes is not None:
            return list(outcomes)
        return [outcome for task in tasks for outcome in self._train([task])]

    def _evaluate(self, params: Vector, kept: State) -> Evaluation | InputError | str:
        try:
            with trap_system_exit():
                if self._evaluator is None:
                    spec = self._start.worker_spec
                    self._evaluator = spec.evaluator(self._start.evaluation_data, self._device)
                return self._evaluator.evaluate(params, kept)
        except InputError as error:
            return error
        # The user's metrics may raise any exception.
        except Exception as error:
            return format_error(error)


def serve(connection: Connection, memory: SharedMemory, number: int) -> None:
    """Answer requests until the connection is closed.

    Args:
        connection: The connection to the executor.
        memory: The shared memory.
        number: The index of the worker.
    """

    def receive() -> tuple[Any, Place | None]:
        request: Request = connection.recv()
        slot, start, size = request.body
        return unpack(memory.view(slot)[start : start + size], request.pieces, memory.view), request.reply

    def send(answer: object, reply: Place | None) -> None:
        packed = pack(answer, 0 if reply is None else reply.size)
        pieces = [] if reply is None else write(packed.arrays, reply, memory.view(reply))
        connection.send(Answer(packed.body, pieces))

    try:
        start, _ = receive()
        worker = WorkerProcess(number, start)
        send(None, None)
        while True:
            call, reply = receive()
            send(worker.call(call), reply)
    # The user's components may raise any exception, also KeyboardInterrupt. Pickling an answer may fail.
    except BaseException as error:
        # If the executor or a component has closed the connection, there is no receiver.
        with suppress(OSError):
            send(Failure(format_error(error)), None)


def _exit_with_parent(lifeline: int, parent: int) -> None:
    """End this process when the executor's process ends. A worker in a long task would notice it only later.

    The pipe stays open if the executor's process has children that have inherited it.
    """
    while not select.select([lifeline], [], [], PARENT_CHECK_SECONDS)[0] and os.getppid() == parent:
        pass
    os._exit(1)


def main() -> None:
    """Serve the executor. The arguments of this program are the worker's index and three file descriptors."""
    # Only the executor's process handles these signals.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    worker, parent, *descriptors = map(int, sys.argv[1:])
    for descriptor in descriptors:
        # Programs that the user's components start do not inherit the descriptors.
        os.set_inheritable(descriptor, False)
    connection, memory, lifeline = descriptors
    threading.Thread(target=_exit_with_parent, args=[lifeline, parent], daemon=True).start()
    serve(Connection(connection), SharedMemory(memory), worker)
