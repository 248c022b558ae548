"""The handles of worker processes, and their calls that have not ended."""

import os
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.shared_memory import Lease, Piece
from fedraa.engine.worker_process import Request
from fedraa.messages import Evaluation, State, Task, Vector

# With `-m`, the classes of this module would be pickled as classes of `__main__`.
PROGRAM = "from fedraa.engine.worker_process import main; main()"
# The time between two checks of a call counts at most with this number of seconds. A process and its workers may be
# stopped together for hours.
MAX_COUNTED_SECONDS = 2.0
START, TRAIN, EVALUATE = "start", "train", "evaluate"
# A worker that has begun to send an answer may pause for this time. A worker that has closed its connection may live
# for this time.
ANSWER_SECONDS = 20.0


@dataclass(eq=False)
class ProcessEvaluation:
    """An evaluation in a worker process. If the process dies, another one repeats the evaluation.

    Attributes:
        params: A copy [d] of the model.
        kept: The values that clients keep for their personal models.
        receive: `ProcessExecutor.receive`, which waits for an answer.
        evaluation: The result; None until the evaluation is finished.
        failures: The number of failed attempts.
    """

    params: Vector
    kept: State
    receive: Callable[[float], bool]
    evaluation: Evaluation | None = None
    failures: int = 0

    def result(self, timeout: float) -> Evaluation | None:
        give_up = time.monotonic() + timeout
        while self.evaluation is None and self.receive(give_up):
            pass
        return self.evaluation


@dataclass(frozen=True, eq=False)
class Message:
    """A pickled call in the shared memory.

    Attributes:
        lease: The slot of the message. Its bytes stay unchanged as long as this object exists.
        body: The place of the pickled call.
        pieces: The places of the call's large arrays.
    """

    lease: Lease
    body: Piece
    pieces: list[Piece]


@dataclass(eq=False)
class Call:
    """A call that a worker process has not answered.

    Attributes:
        kind: START, TRAIN or EVALUATE.
        message: The message, which must not be overwritten before the call has ended.
        reply: The slot for the large arrays of the answer; None without such arrays.
        tasks: The tasks to train. They hold the shared buffers that the message names.
        evaluation: The evaluation, if the call is one.
        work: The amount of work. The duration of calls of one kind is about proportional to it.
    """

    kind: str
    message: Message
    reply: Lease | None = None
    tasks: list[Task] = field(default_factory=list)
    evaluation: ProcessEvaluation | None = None
    work: float = 1.0


@dataclass(eq=False)
class WorkerHandle:
    """A worker process, and its calls that have not ended, in order. Its first call starts the worker.

    Attributes:
        deaths: The number of deaths since the worker last finished a call.
        calls: The calls that have not ended.
        is_ready: True if the worker has started.
        seconds: The seconds that the first call has taken.
        looked_at: The monotonic time of the last change of `seconds`.
    """

    number: int
    process: subprocess.Popen[bytes]
    connection: Connection
    deaths: int
    calls: deque[Call] = field(default_factory=deque)
    is_ready: bool = False
    seconds: float = 0.0
    looked_at: float = 0.0

    @classmethod
    def start(cls, number: int, deaths: int, memory: int, lifeline: int) -> "WorkerHandle":
        """Start a worker process.

        Args:
            number: The index of the worker.
            deaths: The number of deaths of its predecessors in a row.
            memory: The file descriptor of the shared memory.
            lifeline: The file descriptor of the end of a pipe. The process ends when the other end is closed.
        """
        # The process finds the modules that this process finds, such as those beside the user's script.
        folders = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
        variables = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}
        own, theirs = socket.socketpair()
        with theirs:
            for end in (own, theirs):
                end.setblocking(True)
            # If a process is stopped while it sends a long answer, `recv` raises BlockingIOError.
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(ANSWER_SECONDS), 0))
            connection = Connection(own.detach())
            descriptors = (theirs.fileno(), memory, lifeline)
            program = [sys.executable, "-c", PROGRAM, str(number), str(os.getpid()), *map(str, descriptors)]
            # A terminal sends Ctrl-C to its process group. A worker in this group would print a traceback if it starts.
            process = subprocess.Popen(
                program, env=os.environ | variables, pass_fds=descriptors, stdin=subprocess.DEVNULL, process_group=0
            )
        return cls(number, process, connection, deaths)

    def send(self, call: Call) -> None:
        if not self.calls:
            self._restart_time()
        self.calls.append(call)
        reply = None if call.reply is None else call.reply.place
        # A broken connection is handled when it is read.
        with suppress(ConnectionError):
            self.connection.send(Request(call.message.body, call.message.pieces, reply))

    def end_call(self) -> tuple[Call, float]:
        """Remove the first call. Return it and its duration in seconds."""
        self._count_time()
        seconds = self.seconds
        self._restart_time()
        return self.calls.popleft(), seconds

    def describe_overrun(self, limits: HangDetector) -> str | None:
        """Return the problem if the first call takes too long; otherwise None."""
        self._count_time()
        if not self.calls:
            return None
        call = self.calls[0]
        bound = limits.bound(call.kind, call.work)
        if self.seconds <= bound:
            return None
        return f"worker hung: no answer to the call {call.kind} within {bound:.3g} s"

    def describe_end(self) -> str | None:
        """Return the problem if the process has ended and there is no answer to read; otherwise None.

        The connection stays open if the process has left children that have inherited it.
        """
        code = self.process.poll()
        if code is None or self.connection.poll():
            return None
        return f"worker died (exit code {code})"

    def await_exit(self) -> int:
        """Return the exit code of a process that has closed its connection. Kill the process if it does not end."""
        try:
            return self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            return self.end()

    def end(self) -> int:
        """Kill the process. Return its exit code, which is that of an earlier end if it had ended."""
        self.process.kill()
        self.connection.close()
        return self.process.wait()

    def _restart_time(self) -> None:
        self.seconds = 0.0
        self.looked_at = time.monotonic()

    def _count_time(self) -> None:
        now = time.monotonic()
        self.seconds += min(now - self.looked_at, MAX_COUNTED_SECONDS)
        self.looked_at = now
