"""Workers that serve one run after another, because the start of a process that imports PyTorch takes seconds."""

from dataclasses import dataclass, field
from typing import Any

from actors import runtime
from actors.pool.executor import RayExecutor
from actors.pool.pulse import actor_class
from actors.worker.worker import Worker
from fedraa.messages import Evaluation, Update


class WarmWorker:
    """An actor that is the worker of one run after another."""

    def prepare(self, kind: type[Worker], *args: Any) -> None:
        """Become a new worker of a class."""
        self._worker = kind(*args)

    def started(self) -> str:
        return self._worker.started()

    def train_all(self, *args: Any) -> list[Update]:
        return self._worker.train_all(*args)

    def evaluate(self, *args: Any) -> Evaluation:
        return self._worker.evaluate(*args)


@dataclass
class WorkerPool:
    """Actors that no run uses. Some more actors than a run needs start in advance."""

    spares: int = 1
    free: list[Any] = field(default_factory=list)

    def take(self) -> Any:
        """Return an actor that no other run uses."""
        kind = actor_class(WarmWorker)
        while len(self.free) <= self.spares:
            self.free.append(kind.remote())
        return self.free.pop(0)


@dataclass
class PooledExecutor(RayExecutor):
    """An executor on the actors of a pool. It returns the actors that live at its end."""

    pool: WorkerPool = field(default_factory=WorkerPool)

    def _create_actor(self, number: int, group: int, device: str) -> Any:
        actor = self.pool.take()
        # Ray may make calls in another order, so that the answer must arrive before the next call.
        runtime.get(actor.prepare.remote(self.worker, number, self.worker_spec, self.threads, device))
        return actor

    def close(self) -> None:
        for handle in self._handles.values():
            # A worker with open calls may be hung.
            if handle.calls:
                runtime.kill(handle.actor)
            else:
                self.pool.free.append(handle.actor)
        self._handles.clear()
