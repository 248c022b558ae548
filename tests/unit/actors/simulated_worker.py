"""Workers of the simulated Ray, and the arithmetic that replaces training and evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from simulated_actors import Message, SimulatedActor
from simulated_ray import HERE, Ref

from fedraa.messages import Evaluation, Task, Update, Vector
from fedraa.objectives import MetricSpec


@dataclass(eq=False)
class SimulatedWorker(SimulatedActor):
    """A worker. It may die or freeze in a task, but each task is disturbed at most once."""

    number: int = 0

    def _arrive(self, message: Message) -> None:
        has_refs = any(isinstance(arg, Ref) for arg in message.args)
        if not has_refs or not self.simulation.happens(self.simulation.faults.unbegun):
            super()._arrive(message)

    def begin(self, message: Message) -> None:
        simulation = self.simulation
        for task in _tasks_of(message):
            if task not in simulation.disturbed:
                simulation.disturbed.add(task)
                if simulation.happens(simulation.faults.deaths):
                    simulation.after(simulation.delay(), self.die)
                if simulation.happens(simulation.faults.freezes):
                    self.freeze(simulation.rng.choice(simulation.faults.freeze_s))
        simulation.after(simulation.rng.expovariate(2.0), lambda: self._end(message))

    def _end(self, message: Message) -> None:
        if not self.is_dead:
            self.finish(message, _make_call(message))


def _tasks_of(message: Message) -> list[int]:
    if message.method != "train_all":
        return []
    return [job.header.id for job in message.args[0]]


def _make_call(message: Message) -> Any:
    if message.method == "started":
        return HERE
    if message.method == "evaluate":
        return evaluate(message.args[0].value)
    jobs, *refs = message.args
    return [train(replace(job.header, buffer=_values_of(job.buffer, refs))) for job in jobs]


def _values_of(buffer: Any, refs: Sequence[Ref]) -> Any:
    if isinstance(buffer, int):
        return refs[buffer].value
    return buffer


def train(task: Task) -> Update:
    """Return an update that depends only on the task and its parameters."""
    noise = np.sin(task.id + np.arange(task.size, dtype=np.float32))
    params = np.float32(0.9) * task.params + np.float32(0.1) * noise
    return Update(task.id, task.client, task.fragment, task.version, params, steps=1, loss=0.5, seconds=0.1)


def evaluate(params: Vector) -> Evaluation:
    return Evaluation(dict.fromkeys(MetricSpec().columns, float(np.abs(params).mean())))
