"""Runs whose server is in the test's process: fewer actors to start, and test classes of workers and executors."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import ray

from actors.cluster.engine import with_shared_source
from actors.pool.executor import RayExecutor
from actors.pool.liveness import Heartbeat
from actors.pool.serializer import put_blocks
from actors.server.sharded_store import ShardedStore
from actors.worker.worker import Worker
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.build import build_run
from fedraa.engine.objects import split_objects
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.session import RunSession
from fedraa.rundir.history import History

# Workers cannot import a test module, so Ray sends its classes by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


def execute(
    spec: RunSpec,
    directory: Path,
    worker: type[Worker] = Worker,
    executor: type[RayExecutor] = RayExecutor,
    *,
    workers: int = 2,
    resume: bool = False,
    callbacks: CallbackList | None = None,
    stop: Event | None = None,
    **fields: Any,
) -> History:
    """Run or resume an experiment on workers and server shards of the shared cluster.

    Args:
        spec: The run.
        directory: The run directory.
        worker: The class of the workers.
        executor: The class of the executor.
        workers: The number of workers with one core each, unless `fields` have `groups`.
        resume: True to continue the run.
        callbacks: Receive the events of the run.
        stop: Ends the run when it is set.
        fields: Other fields of the executor.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fields.setdefault("groups", (WorkerGroup(workers, {"CPU": 1}),))
    store = None
    with ExitStack() as actors:
        if spec.experiment.server_shards > 1:
            store = ShardedStore.of(spec, fields.get("heartbeat", Heartbeat()))
            actors.callback(store.close)
            fields |= {"check": store.check, "watch": store.watch}
        pool = executor.of(spec, worker=worker, **fields)
        actors.callback(pool.close)
        RunSession(spec, directory, pool, stop or Event(), callbacks, store=store).execute(resume=resume)
    return History(directory)


def execute_warm(
    warm_workers: tuple[Any, ...],
    spec: RunSpec,
    directory: Path,
    worker: type[Worker] = Worker,
    **options: Any,
) -> History:
    """Run or resume an experiment on the warm workers, with the spec and the data that a server actor would get."""
    hosted: RunSpec = ray.get(ray.put(with_shared_source(spec.without_training_rows())))
    return execute(
        hosted,
        directory,
        worker,
        WarmExecutor,
        workers=len(warm_workers),
        blocks=put_blocks(spec.data),
        warm_workers=warm_workers,
        **options,
    )


def run_warm(
    warm_workers: tuple[Any, ...], out: Path, *, model: Any = None, dataset: Any = None, **fields: Any
) -> History:
    """Run what `fedraa.run` would run with these arguments, on the warm workers."""
    module, data, fields = split_objects(model, dataset, fields)
    return execute_warm(warm_workers, build_run(Experiment(**fields), module, data), out)


@dataclass
class WarmExecutor(RayExecutor):
    """An executor on warm workers, which outlive it. A run must not kill, hang or freeze them."""

    warm_workers: tuple[Any, ...] = ()

    def _create_actor(self, number: int, group: int, device: str) -> Any:
        actor = self.warm_workers[number]
        # Ray may make calls in another order.
        ray.get(actor.prepare.remote(self.worker, number, self.worker_spec, self.threads, device))
        return actor

    def close(self) -> None:
        self._handles.clear()
