"""Callbacks that write evaluations to a CSV file, to TensorBoard and to Weights & Biases."""

import hashlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event, RunStart
from fedraa.callbacks.tracker import Tracker
from fedraa.errors import InputError


class CSV(Callback):
    """A CSV file with one row per evaluation: step, t (s on the run's clock) and every metric.

    A starting run overwrites the file. A resumed run writes the earlier rows again.
    """

    blocking = False

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._stream: TextIO | None = None
        self._empty = True

    def on_start(self, run: RunStart) -> None:
        self.on_close()
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        # `on_close` closes the file.
        self._stream = open(self.path, "w", encoding="utf-8", opener=_at_once)  # noqa: SIM115
        self._empty = True

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        assert self._stream is not None
        if self._empty:
            self._stream.write(",".join(("step", "t", *metrics)) + "\n")
            self._empty = False
        self._stream.write(",".join(map(repr, (step, t, *metrics.values()))) + "\n")
        self._stream.flush()

    def on_close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _at_once(path: str, flags: int) -> int:
    """Open a file. Raises OSError for a named pipe without a reader, which would block forever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


class TensorBoard(Tracker):
    """A callback that writes every metric and t by server step to TensorBoard.

    Args:
        directory: The folder of all runs, which `tensorboard --logdir` reads.
        name: The folder of this run in it; None for the name of the run's directory.

    Raises InputError if the package tensorboard is missing.
    """

    def __init__(self, directory: str | Path = "tensorboard", name: str | None = None) -> None:
        self.directory = directory
        self.name = name
        self._package = import_package("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None

    def open(self, run: RunStart) -> None:
        self.shut()
        folder = Path(self.directory) / (self.name or run.directory.name)
        # The events repeated after a resumption replace the values that an earlier process wrote.
        purge_step = 0 if run.resumed else None
        self._writer = self._package.SummaryWriter(str(folder), purge_step=purge_step)

    def write_metrics(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        self.write(step, {**metrics, "t": t})

    def write(self, step: int, values: Mapping[str, float], wall: float | None = None) -> None:
        """Write the scalars of a step with the time `wall` (s since 1970; default: now).

        Args:
            step: The server step.
            values: The values by name.
            wall: The time of the step; None for now.
        """
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=wall)
        self._writer.flush()

    def shut(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandB(Tracker):
    """A callback that writes every metric and t by server step, and the run's end, to Weights & Biases.

    A resumed run continues the same run in Weights & Biases.

    Args:
        project: The name of the Weights & Biases project.
        name: The name of the run; None for the name of its directory.
        group: The group in which Weights & Biases shows the run.

    Raises InputError if the package wandb is missing.
    """

    def __init__(self, project: str = "fedraa", name: str | None = None, group: str | None = None) -> None:
        self.project = project
        self.name = name
        self.group = group
        self._package = import_package("wandb", "wandb")
        self._run: Any = None

    def open(self, run: RunStart) -> None:
        # A restarted server repeats the start and the known events in this process.
        if self._run is not None:
            return
        self._run = self._package.init(
            project=self.project,
            name=self.name or run.directory.name,
            group=self.group,
            id=hashlib.sha256(str(run.directory.resolve()).encode()).hexdigest()[:16],
            resume="allow" if run.resumed else None,
            config=run.experiment.model_dump(mode="json"),
        )

    def write_metrics(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        # Weights & Biases accepts only ascending steps, and a resumption repeats earlier ones.
        if step >= self._run.step:
            self._run.log({**metrics, "t": t}, step=step)

    def write_end(self, event: Event) -> None:
        self._run.summary.update(dict(event))

    def shut(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


def import_package(module: str, name: str) -> ModuleType:
    """Return a module of the optional package `name`. Raises InputError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError("callbacks", f"{name} cannot be imported: {error}", hint=f"run pip install {name}") from None
