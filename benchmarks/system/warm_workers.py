"""Workers that are used in several runs, because a new worker needs seconds to import PyTorch."""

from dataclasses import dataclass, field
from typing import Any

from actors import runtime
from actors.pool.executor import RayExecutor
from actors.pool.liveness import actor_class
from actors.worker.worker import Worker
from fedraa.messages import Evaluation, Update


class WarmWorker:
    """An actor that serves as a worker for one run after another."""

    def prepare(self, kind: type[Worker], *args: Any) -> None:
        """Replace the current worker by a new one of the class `kind`."""
        self._worker = kind(*args)

    def started(self) -> str:
        return self._worker.started()

    def train_all(self, *args: Any) -> list[Update]:
        return self._worker.train_all(*args)

    def evaluate(self, *args: Any) -> Evaluation:
        return self._worker.evaluate(*args)


@dataclass
class WorkerPool:
    """A pool of idle WarmWorker actors. It starts actors in advance."""

    spares: int = 1
    free: list[Any] = field(default_factory=list)

    def take(self) -> Any:
        """Return an idle actor. Also start an actor in advance for the next call, because a start takes seconds."""
        kind = actor_class(WarmWorker)
        while len(self.free) <= self.spares:
            self.free.append(kind.remote())
        return self.free.pop(0)


@dataclass
class PooledExecutor(RayExecutor):
    """An executor that takes its actors from a pool. When it closes, it returns the living actors to the pool."""

    pool: WorkerPool = field(default_factory=WorkerPool)

    def _create_actor(self, number: int, group: int, device: str) -> Any:
        actor = self.pool.take()
        # Ray may reorder calls, so the executor waits for the answer.
        runtime.get(actor.prepare.remote(self.worker, number, self.worker_spec, self.threads, device))
        return actor

    def close(self) -> None:
        for handle in self._handles.values():
            # A worker with unfinished calls may hang, so it is killed instead.
            if handle.calls:
                runtime.kill(handle.actor)
            else:
                self.pool.free.append(handle.actor)
        self._handles.clear()
