"""The simulated parts of the driver and the server: actor classes, health checks, files and the machine's load."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from simulated_actors import HostActor
from simulated_ray import Stage, simulated_runtime
from simulated_session import Disk, Session, Sync
from simulated_worker import SimulatedWorker

from actors.cluster import engine, follower
from actors.pool import executor, liveness
from actors.server import parameter_server
from actors.server.parameter_server import RUN, ParameterServer, Setting
from actors.server.relay import Relay
from actors.worker.worker import Worker
from fedraa.callbacks.callback_list import CallbackList


class Server(ParameterServer):
    """A server that loads no libraries and writes no files."""

    def __init__(self, spec: Any, directory: Disk | None, setting: Setting) -> None:
        self._own = ExitStack()
        self._directory = directory or Disk()
        self._spec = spec
        self._setting = setting
        self._relay = Relay(CallbackList(), setting.audience)
        self._executor = None
        self._stop = threading.Event()
        self._filling = threading.Lock()
        self._filled = None
        self._outcome = None

    def is_saving(self) -> bool:
        return False


class _ActorClass:
    """A stand-in for an actor class of Ray."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._options: dict[str, Any] = {}

    def options(self, **options: Any) -> "_ActorClass":
        self._options = options
        return self

    def remote(self, *args: Any) -> Any:
        simulation = Stage.simulation
        needs = self._options.get("num_cpus", 0)
        node = getattr(self._options.get("scheduling_strategy"), "node_id", None)
        if self._kind is Worker:
            return simulation.create(SimulatedWorker(simulation, needs, node, number=args[0]))
        args = tuple(arg.value if hasattr(arg, "is_ready") else arg for arg in args)
        actor = HostActor(simulation, needs, node, make=partial(Server, *args), groups={"execute": (RUN, 1)})
        actor.concurrency = self._options["max_concurrency"]
        return simulation.create(actor)


class _Watch:
    """The health check of the simulated cluster."""

    def __init__(self, *args: Any) -> None:
        self._run = Stage.run

    def lost(self) -> str | None:
        return "Ray's GCS died" if self._run.simulation.is_lost else None

    confirm_lost = lost


@contextmanager
def simulated_cluster() -> Iterator[None]:
    """Replace the functions of `actors.runtime`, the files, the machine's load, and Ray's actor classes."""
    forwarded = SimpleNamespace(
        monotonic=lambda: Stage.simulation.now, sleep=lambda seconds: Stage.simulation.sleep(seconds)
    )
    with ExitStack() as stack:
        stack.enter_context(simulated_runtime())
        for module in (executor, engine):
            stack.enter_context(mock.patch.object(module, "actor_class", lambda kind, groups=None: _ActorClass(kind)))
        stack.enter_context(mock.patch.object(executor, "make_worker_spec", return_value=None))
        no_cpu_time = {"knows_cpu_seconds": lambda: True, "cpu_seconds": lambda process: 0.0}
        stack.enter_context(mock.patch.multiple(liveness, load_factor=lambda: 1.0, **no_cpu_time))
        stack.enter_context(mock.patch.object(follower, "load_factor", return_value=1.0))
        stack.enter_context(
            mock.patch.multiple(
                engine,
                time=forwarded,
                joined_address=lambda: "far:6379" if Stage.run.plan.is_far else None,
                ClusterWatch=_Watch,
                HeadWatch=_Watch,
                Need=SimpleNamespace(of=lambda spec: SimpleNamespace(server=0.0)),
                carry_by_value=lambda parts: None,
                explain_exit=lambda message: nullcontext(),
                RunDirSync=Sync,
                register_writer=lambda directory: nullcontext(),
                newest_first=Disk.newest_first,
                is_written=lambda path: False,
                resume_command=lambda spec, directory: "fedraa resume run",
                suggest_continuation=lambda spec, directory: "resume with: fedraa resume run",
                _make_setting=lambda spec, directory, callbacks: Stage.run.setting,
            )
        )
        stack.enter_context(mock.patch.object(engine.ray, "is_initialized", return_value=True))
        stack.enter_context(
            mock.patch.multiple(
                parameter_server,
                RunSession=Session,
                fill=Disk.fill_new,
                read_changes=lambda disk, seen: (list(disk.states), disk.is_over),
            )
        )
        yield
