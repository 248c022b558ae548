"""Runs of a small experiment under different conditions, such as two workers, another seed or interruptions."""

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import torch

from fedraa.client.task_trainer import TaskTrainer
from fedraa.engine.build import build_run
from fedraa.engine.executor import LocalExecutor, train_together
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.engine.loop import Loop
from fedraa.engine.loop_options import LoopOptions
from fedraa.engine.process_guard import exclusive_process
from fedraa.engine.run_description import params_digest
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import RunFailed
from fedraa.messages import State, Vector
from fedraa.rundir.checkpoint import read_state, write_state
from fedraa.rundir.event_log import EventLog
from fedraa.rundir.file_names import EVENTS
from fedraa.testing.samples import SmallExperiment

# A run usually has about 60 events. A wrong component may prevent the run from ending.
MAX_EVENTS = 400

Lines = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Outcome:
    """The result of a run: its events without real times, and a digest of its final model."""

    events: Lines
    model: str

    def first_difference(self, other: "Outcome") -> str | None:
        """Return a text about the first difference between two outcomes, or None if they are equal."""
        for event, other_event in zip(self.events, other.events, strict=False):
            if event != other_event:
                return f"from event {event['seq']} on, of kind {event['kind']}"
        if len(self.events) != len(other.events):
            return f"at event {min(len(self.events), len(other.events))}, at which one of them ends"
        if self.model != other.model:
            return "in their final models"
        return None

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.events, self.model]).encode()).hexdigest()


class TwoWorkers(LocalExecutor):
    """An executor that trains tasks in reverse order, and alternates between two trainers."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(_make_trainer(spec), make_worker_spec(spec).evaluator(spec.evaluation_data, "cpu"), spec.data)
        self._other = _make_trainer(spec)

    def _train_stack(self, task: int) -> None:
        waiting = [work for number, work in self._tasks.items() if number not in self._trained]
        for work in reversed(waiting):
            self._trained |= zip([work.id], train_together(self._trainer, self._data, [work]) or (), strict=True)
            self._trainer, self._other = self._other, self._trainer


def run_small_experiment(
    make: Callable[[], SmallExperiment], *, seed: int = 0, workers: int = 1, pauses: int = 0, events: int = 0
) -> Outcome:
    """Run a small experiment in this process and return its outcome.

    Args:
        make: A function that returns the experiment. It is called again after each interruption.
        seed: The seed of the global generators of Python, NumPy and torch. A component must not use these generators.
        workers: 1 for one worker. A larger number gives two workers.
        pauses: The number of interruptions. After each, the run continues from a checkpoint with new objects.
        events: The number of events of an uninterrupted run. The interruptions divide the run into equal parts.
    """
    stops = [events * (number + 1) // (pauses + 1) for number in range(pauses)]
    with _seed_generators(seed), TemporaryDirectory() as folder:
        state: State | None = None
        for stop in [*stops, None]:
            small = make()
            spec = build_run(small.experiment, small.module(), small.dataset)
            state, params = _run_part(spec, Path(folder), state, stop, workers)
            if state is None:
                break
        lines = [json.loads(line) for line in (Path(folder) / EVENTS).read_text().splitlines()]
        return Outcome(tuple(_drop_times(line) for line in lines), params_digest(spec, params))


def run_on_ray(make: Callable[[], SmallExperiment], workers: int) -> Outcome:
    """Run a small experiment on Ray. Return the part of its outcome that does not depend on the speed of workers."""
    # An import at the top would be circular, because `fedraa.api` imports every module.
    from fedraa.api import run

    with TemporaryDirectory() as folder:
        small = make()
        experiment = small.experiment.model_copy(update={"engine": "ray", "workers": workers, "quiet": True})
        history = run(experiment, model=small.module(), dataset=small.dataset, out=Path(folder) / "run")
        lines = tuple(_drop_times(line) for line in history.lines())
        return drop_speed_effects(Outcome(lines, str(history.summary["model_sha256"])))


def drop_speed_effects(outcome: Outcome) -> Outcome:
    """Return the part of an outcome that does not depend on the speed of workers.

    This function removes faults, moves evaluations to the end, and numbers the events again.
    """
    kept = [line for line in outcome.events if line["kind"] not in ("fault", "end")]
    kept.sort(key=lambda line: line["kind"] == "eval")
    return Outcome(tuple({**line, "seq": number} for number, line in enumerate(kept)), outcome.model)


def round_trip(state: State) -> State:
    """Write the state to a checkpoint, and return the state that is read from this checkpoint."""
    stream = io.BytesIO()
    write_state(stream, state)
    return deepcopy(read_state(stream.getvalue()))


def _run_part(
    spec: RunSpec, directory: Path, state: State | None, until: int | None, workers: int
) -> tuple[State | None, Vector]:
    """Run a part of an experiment. Return the state after it (None if the run ended) and the model's parameters.

    Args:
        spec: The experiment.
        directory: The directory of the log.
        state: The state from which the run continues; None to start the run.
        until: The number of the event at which this part ends; None for the end of the run.
        workers: 1 for one worker. A larger number gives two workers.
    """
    stop = Event()

    def check_length(line: Mapping[str, object]) -> None:
        number = int(str(line["seq"]))
        if number >= MAX_EVENTS:
            raise RunFailed(
                "run",
                f"it has not ended after {MAX_EVENTS} events, but such a run usually has about 60",
            )
        if until is not None and number >= until:
            stop.set()

    log = EventLog(directory, on_line=check_length)
    try:
        loop = Loop(
            make_server(spec, log.record),
            TwoWorkers(spec) if workers > 1 else _one_worker(spec),
            log,
            LoopOptions(
                limits=spec.limits,
                eval_every=spec.eval_every,
                checkpoint_every=None,
                timing=spec.timing,
                wall=False,
                max_update_norm=None,
                main_metric=spec.objective.main,
            ),
            save=lambda: 0.0,
            stop=stop,
        )
        if state is None:
            log.begin(spec.metric_spec)
            loop.begin()
        else:
            loop.restore(state)
        if loop.run() is not None:
            return None, loop.server.params
        return round_trip(loop.state()), loop.server.params
    finally:
        log.close()


def _one_worker(spec: RunSpec) -> LocalExecutor:
    return LocalExecutor(_make_trainer(spec), make_worker_spec(spec).evaluator(spec.evaluation_data, "cpu"), spec.data)


def _make_trainer(spec: RunSpec) -> TaskTrainer:
    """Return a trainer that shares no object with other trainers, like a trainer in a separate process."""
    return deepcopy(make_worker_spec(spec)).trainer("cpu")


def _drop_times(line: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in line.items() if name != "wall"}


@contextmanager
def _seed_generators(seed: int) -> Iterator[None]:
    """Seed the global random generators and set torch to one thread. Restore both at the end of the block."""
    with exclusive_process():
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        yield
