"""Write evaluations to a CSV file, to TensorBoard and to Weights & Biases."""

import hashlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from fedraa.arguments import check_texts, to_path
from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event, RunStart
from fedraa.callbacks.tracker import Tracker
from fedraa.errors import InputError


class CSV(Callback):
    """A callback that writes a CSV file with a row per evaluation.

    The columns are step, t (time on the run's clock) and all metrics. The file is overwritten when a run starts. A
    resumed run writes the rows of earlier evaluations again.

    Args:
        path: The file.

    Raises:
        InputError: `path` is a directory or not a path.
    """

    blocking = False

    def __init__(self, path: str | Path) -> None:
        self.path = to_path("callbacks.path", path)
        if self.path.is_dir():
            raise InputError("callbacks.path", "it is a directory", got=path, hint="name a file")
        self._stream: TextIO | None = None
        self._empty = True

    def on_start(self, run: RunStart) -> None:
        self.on_close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # `on_close` closes the file.
        self._stream = open(self.path, "w", encoding="utf-8", opener=_open_without_waiting)  # noqa: SIM115
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


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file, but raise OSError for a named pipe without a reader."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


class TensorBoard(Tracker):
    """A callback that writes the time and all metrics of each evaluation to TensorBoard.

    Args:
        directory: The folder of all runs, which `tensorboard --logdir` reads.
        name: The subfolder of this run; None for the name of the run directory.

    Raises:
        InputError: An argument has the wrong type, or the package tensorboard is not installed.
    """

    def __init__(self, directory: str | Path = "tensorboard", name: str | None = None) -> None:
        self.directory = to_path("callbacks.directory", directory)
        check_texts("callbacks", optional=True, name=name)
        self.name = name
        self._package = import_package("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None

    def open(self, run: RunStart) -> None:
        self.shut()
        folder = self.directory / (self.name or run.directory.name)
        # A resumed run delivers all earlier events again, so TensorBoard discards the old values.
        purge_step = 0 if run.resumed else None
        self._writer = self._package.SummaryWriter(str(folder), purge_step=purge_step)

    def write_metrics(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        self.write(step, {**metrics, "t": t})

    def write(self, step: int, values: Mapping[str, float], wall: float | None = None) -> None:
        """Write values of one server step to TensorBoard.

        Args:
            step: The server step.
            values: The values by name.
            wall: The real time of the step, in seconds since 1970; None for now.
        """
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=wall)
        self._writer.flush()

    def shut(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandB(Tracker):
    """A callback that writes the evaluations and the result of a run to Weights & Biases.

    A resumed run continues the same run in Weights & Biases.

    Args:
        project: The name of the Weights & Biases project.
        name: The name of the run; None for the name of the run directory.
        group: The group in which Weights & Biases shows the run; None for no group.

    Raises:
        InputError: An argument is no text, or the package wandb is not installed.
    """

    def __init__(self, project: str = "fedraa", name: str | None = None, group: str | None = None) -> None:
        check_texts("callbacks", project=project)
        check_texts("callbacks", optional=True, name=name, group=group)
        self.project = project
        self.name = name
        self.group = group
        self._package = import_package("wandb", "wandb")
        self._run: Any = None

    def open(self, run: RunStart) -> None:
        # If a dead server on Ray is restarted, `open` is called a second time in the same process.
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
        # Weights & Biases accepts only ascending steps, but a resumed run delivers earlier steps again.
        if step >= self._run.step:
            self._run.log({**metrics, "t": t}, step=step)

    def write_end(self, event: Event) -> None:
        self._run.summary.update(dict(event))

    def shut(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


def import_package(module: str, name: str) -> ModuleType:
    """Import a module of the optional package `name`.

    Raises InputError with the install command if the import fails.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError("callbacks", f"{name} cannot be imported: {error}", hint=f"run pip install {name}") from None
