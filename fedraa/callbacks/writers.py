"""Evaluations as they come, to a CSV file, to TensorBoard and to Weights & Biases."""

import hashlib
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event, RunStart
from fedraa.errors import InputError


class CSV(Callback):
    """One row per evaluation in a file of its own: step, t (s on the run's clock) and every metric.

    The file is written anew when a run starts; when it is resumed, it gets the earlier rows again.
    """

    waits = False

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._stream: TextIO | None = None
        self._empty = True

    def on_start(self, run: RunStart) -> None:
        self.on_close()
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        self._stream, self._empty = open(self.path, "w", encoding="utf-8", opener=_at_once), True  # noqa: SIM115  # on_close does

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
    """Opens a file; OSError for a named pipe that nobody reads, which would be waited for without end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


class TensorBoard(Callback):
    """Every metric, and t, against the server's step, below `directory` in a folder `name` (default: the run's own).

    Raises InputError if the package tensorboard is missing.
    """

    waits = False

    def __init__(self, directory: str | Path, name: str | None = None) -> None:
        self.directory, self.name = directory, name
        self._package = _package("torch.utils.tensorboard", "tensorboard")
        self._writer: Any = None

    def on_start(self, run: RunStart) -> None:
        self.on_close()
        folder = Path(self.directory) / (self.name or run.directory.name)
        # What is told again after a resumption takes the place of what an earlier process wrote.
        self._writer = self._package.SummaryWriter(str(folder), purge_step=0 if run.resumed else None)

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        self.write(step, {**metrics, "t": t})

    def write(self, step: int, values: Mapping[str, float], wall: float | None = None) -> None:
        """Scalars of a step, as of `wall` (s; default: now, since 1970)."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=wall)
        self._writer.flush()

    def on_close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandB(Callback):
    """Every metric, and t, against the server's step, to a project of Weights & Biases; at the end what ended the run.

    `name` is the run's (default: that of its directory), `group` the group that it is in. A resumed run goes on in the
    same run there. Raises InputError if the package wandb is missing.
    """

    waits = False

    def __init__(self, project: str, name: str | None = None, group: str | None = None) -> None:
        self.project, self.name, self.group = project, name, group
        self._package = _package("wandb", "wandb")
        self._run: Any = None

    def on_start(self, run: RunStart) -> None:
        if self._run is not None:  # in this process: the server has died, and tells again what is known
            return
        self._run = self._package.init(
            project=self.project,
            name=self.name or run.directory.name,
            group=self.group,
            id=hashlib.sha256(str(run.directory.resolve()).encode()).hexdigest()[:16],
            resume="allow" if run.resumed else None,
            config=run.experiment.model_dump(mode="json"),
        )

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        if step >= self._run.step:  # it takes steps in their order alone, and has those told again
            self._run.log({**metrics, "t": t}, step=step)

    def on_end(self, event: Event) -> None:
        self._run.summary.update(dict(event))

    def on_close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None


def _package(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError("callbacks", f"{name} cannot be imported: {error}", hint=f"pip install {name}") from None
