"""A session that computes a small run without training, its run directory, and an executor without workers."""

import threading
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
from simulated_ray import Stage
from simulated_worker import evaluate, train

from fedraa.errors import RunFailed
from fedraa.messages import Fault, Task, Update

CLIENTS, STEPS, SIZE = 3, 12, 3
CHECKPOINT_EVERY, EVAL_EVERY = 4, 5
# At this step a task is cancelled, and its client gets another one.
CANCEL_AT = 7
MAX_ATTEMPTS = 4
POLL_S = 1.0


class Disk:
    """A stand-in for a run directory: its checkpoints, the newest last."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.is_over = self.is_written = False

    def save(self, state: dict[str, Any]) -> None:
        self.is_written = True
        self.states = [*self.states[-1:], deepcopy(state)]

    def resolve(self) -> "Disk":
        return self

    def __truediv__(self, name: str) -> "Disk":
        return self

    def exists(self) -> bool:
        return bool(self.states)

    def newest_first(self) -> list[str]:
        return [f"step {state['step']}" for state in reversed(self.states)]

    def fill_new(self, files: tuple[list[dict[str, Any]], bool]) -> dict[str, Any]:
        """Write files into the directory, in which no run may have written a checkpoint."""
        if self.is_written:
            Stage.simulation.violations.append("old files replace those of the run")
        self.fill(files)
        return {}

    def fill(self, files: tuple[list[dict[str, Any]], bool]) -> None:
        states, self.is_over = files
        self.states = list(states)


class Sync:
    """A stand-in for the synchronisation that copies the run directory of a remote server."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.seen: dict[str, Any] = {}

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        return self._disk.states, self._disk.is_over

    def apply(self, changes: tuple[list[dict[str, Any]], bool]) -> None:
        self._disk.fill(changes)


class Session:
    """A stand-in for RunSession without training. Its model depends on all commits and on their order."""

    def __init__(self, spec: Any, disk: Disk, pool: Any, stop: threading.Event, relay: Any, **options: Any) -> None:
        self._disk = disk
        self._pool = pool
        self._stop = stop
        self._relay = relay
        self._attempts: dict[int, int] = {}
        self.faults = 0
        self._state: dict[str, Any] = {"step": 0, "next": 0, "now": 0.0, "log": [], "by": None, "evaluated": 0}
        self._state |= {"model": np.zeros(SIZE, np.float32), "tasks": {}, "waiting": list(range(CLIENTS))}

    def execute(self, *, resume: bool) -> bool:
        if self._disk.states and not resume:
            Stage.simulation.violations.append("the run begins again, although it has a checkpoint")
        if resume and self._disk.states:
            self._state = deepcopy(self._disk.states[-1])
            for event in self._state["log"]:
                self._relay.tell(event, past=True)
            for task, due in self._state["tasks"].values():
                self._pool.submit(task, due)
        if self._disk.is_over:
            return True
        state = self._state
        while state["step"] < STEPS and state["by"] is None:
            if self._stop.is_set():
                self._disk.save(state)
                return False
            self._take_step()
        self._disk.save(state)
        self._disk.is_over = True
        return True

    def _take_step(self) -> None:
        state = self._state
        if state["step"] % EVAL_EVERY == 0 and state["evaluated"] < state["step"]:
            self._evaluate()
            return
        for client in state["waiting"]:
            self._dispatch(client)
        state["waiting"].clear()
        if state["step"] % CHECKPOINT_EVERY == 0 and not any(s["step"] == state["step"] for s in self._disk.states):
            self._disk.save(state)
        head = min(state["tasks"], key=lambda number: (state["tasks"][number][1], number))
        outcome = self._pool.wait(head, POLL_S)
        if isinstance(outcome, Fault):
            self._send_again(outcome)
        elif outcome is not None:
            assert outcome.task == head, "the outcome of another task"
            self._commit(outcome)

    def _dispatch(self, client: int) -> None:
        state = self._state
        number = state["next"]
        state["next"] += 1
        due = state["now"] + 1 + 0.37 * client
        task = Task(number, client, number, 0, state["step"], state["step"], (), state["model"].copy(), 0.1, 1.0)
        state["tasks"][number] = (task, due)
        self._pool.submit(task, due)

    def _send_again(self, fault: Fault) -> None:
        self.faults += 1
        if fault.task is None:
            return
        task, due = self._state["tasks"][fault.task]
        self._attempts[fault.task] = self._attempts.get(fault.task, 0) + 1
        if self._attempts[fault.task] == MAX_ATTEMPTS:
            raise RunFailed("task", fault.error)
        self._pool.submit(task, due)

    def _commit(self, update: Update) -> None:
        state = self._state
        task, state["now"] = state["tasks"].pop(update.task)
        state["model"] = np.float32(0.8) * state["model"] + np.float32(0.2) * update.params
        state["step"] += 1
        state["waiting"].append(task.client)
        self._tell({"kind": "commit", "task": update.task, "step": state["step"]})
        if state["step"] == CANCEL_AT:
            number = max(state["tasks"])
            self._pool.cancel(number)
            state["waiting"].append(state["tasks"].pop(number)[0].client)

    def _evaluate(self) -> None:
        state = self._state
        pending = self._pool.evaluate(state["model"], {})
        result = None
        while result is None:
            if self._stop.is_set():
                return
            result = pending.result(POLL_S)
        state["evaluated"] = state["step"]
        self._tell({"kind": "eval", "step": state["step"], "t": state["now"], **result.metrics})

    def _tell(self, event: dict[str, Any]) -> None:
        self._state["log"].append(event)
        self._state["by"] = self._relay.tell(event) or self._state["by"]


class Direct:
    """An executor that computes the updates at once, without workers."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = task

    def wait(self, task: int, timeout: float) -> Update:
        return train(self._tasks.pop(task))

    def cancel(self, task: int) -> None:
        del self._tasks[task]

    def evaluate(self, params: Any, kept: Any) -> Any:
        return SimpleNamespace(result=lambda timeout: evaluate(params))
