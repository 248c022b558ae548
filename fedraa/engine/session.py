"""One run over one pool: from the first dispatch to a complete run directory."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event

import numpy as np
import torch

from fedraa.components import describe as describe_component
from fedraa.devices.fleet import COLUMNS, Floats
from fedraa.engine.executor import Executor
from fedraa.engine.loop import Loop, Progress
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import State, Vector
from fedraa.rundir.checkpoint import load_latest, save
from fedraa.rundir.files import replacing, write_text
from fedraa.rundir.history import CHECKPOINTS, CONFIG, MODEL, SUMMARY, EventLog, History
from fedraa.rundir.profile import PROFILE, Spent
from fedraa.server.storage.store import Store
from fedraa.submodels.indices import owners

PACKAGES = ("fedraa", "numpy", "ray", "torch")


class RunSession:
    """DataHosts the loop of one run. It lives in the driver, or in the server actor."""

    def __init__(
        self,
        spec: RunSpec,
        directory: Path,
        executor: Executor,
        stop: Event,
        watch: Callable[[Progress], None] = lambda progress: None,
        *,
        driver: str | None = None,
        description: dict[str, object] | None = None,
        on_event: Callable[..., None] | None = None,
        store: Store | None = None,
    ) -> None:
        """`driver` and `description` are of the process that the user started, where that is another one.

        `on_event` is told all that is recorded: kind, time, fields. `store` keeps the parameters (default: the server).
        """
        self._assembly = spec
        self._directory = directory
        self._description = description
        self._log = EventLog(directory, driver, on_event)
        self._workers = executor.workers
        self._store = store
        experiment = spec.experiment
        self._loop = Loop(
            spec.server(self._log.record, store, executor.share),
            executor,
            self._log,
            limits=spec.limits,
            eval_every=spec.eval_every,
            checkpoint_every=experiment.checkpoint_every,
            timing=spec.timing,
            wall=spec.wall,
            max_update_norm=experiment.max_update_norm,
            save=self._save,
            stop=stop,
            watch=watch,
        )

    def execute(self, *, resume: bool = False) -> bool:
        """Runs to the end and writes the model and the summary; False if it was stopped before, all being saved.

        With `resume` it goes on from the last usable checkpoint, if it has not ended meanwhile; ValueError says why it
        cannot.
        """
        try:
            if resume and (self._directory / SUMMARY).exists():
                return True
            self._begin(resume)
            reason = self._loop.run()
            if reason is None:
                self._save()
                return False
            self._finish(reason)
            return True
        finally:
            self._log.close()

    def _begin(self, resume: bool) -> None:
        state = load_latest(self._directory / CHECKPOINTS, self._held) if resume else None
        if state is not None:
            self._loop.restore(state)
            return
        if not (self._directory / CONFIG).exists():  # so early may a server have died
            description = self._description or describe(self._assembly)
            write_text(self._directory / CONFIG, json.dumps(description, indent=2) + "\n")
        self._log.begin()
        self._loop.begin()

    def _held(self, state: State) -> bool:
        """Whether the log still holds all that this checkpoint goes on from."""
        return self._log.holds(state["log"])

    def _finish(self, reason: str) -> None:
        params = self._loop.server.params
        digest = sha256(self._assembly, params)
        self._log.record("end", self._loop.now, reason=reason, step=self._loop.server.step, model_sha256=digest)
        module = self._assembly.worker_spec.evaluator(self._assembly.data, "cpu").prepare(params)
        with replacing(self._directory / MODEL) as stream:
            torch.save(module.state_dict(), stream)
        summary = summarise(History(self._directory)) | {"time_to_target": self._loop.time_to_target}
        if self._store is not None:
            summary["shards"] = self._store.report()
        spent = Spent(
            wall=self._log.wall,
            count=self._workers,
            server=self._loop.server_time.seconds,
            workers=self._loop.worker_time.seconds,
        )
        write_text(self._directory / PROFILE, spent.model_dump_json(indent=2) + "\n")
        write_text(self._directory / SUMMARY, json.dumps(summary, indent=2) + "\n")

    def _save(self) -> None:
        self._log.sync()
        save(self._directory / CHECKPOINTS, self._loop.server.step, self._loop.state())


def summarise(history: History) -> dict[str, object]:
    """Totals of a log that has ended."""
    lines = history.lines()
    end = lines[-1]
    commits = [line for line in lines if line["kind"] == "commit"]
    staleness = [_int(line["staleness"]) for line in commits] or [0]
    evals = history.evals
    return {
        "method": history.config["experiment"]["method"],
        "reason": end["reason"],
        "steps": end["step"],
        "tasks": len(commits),
        "time": end["t"],
        "wall": end["wall"],
        "accuracy": float(evals["accuracy"].iloc[-1]),
        "best_accuracy": float(evals["accuracy"].max()),
        "loss": float(evals["loss"].iloc[-1]),
        "client_worst": float(evals["client_worst"].iloc[-1]),
        "bytes_down": sum(_int(line["bytes_down"]) for line in lines if line["kind"] == "dispatch"),
        "bytes_up": sum(_int(line["bytes_up"]) for line in commits),
        "flops": sum(float(str(line["flops"])) for line in commits),
        "staleness_mean": float(np.mean(staleness)),
        "staleness_max": max(staleness),
        "faults": sum(line["kind"] == "fault" for line in lines),
        "model_sha256": end["model_sha256"],
    }


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def sha256(spec: RunSpec, params: Vector) -> str:
    """Digest of the parameters' float32 bytes in the order of their names."""
    traced = spec.traced
    spans = zip(traced.names, traced.offsets, (*traced.offsets[1:], traced.size), strict=True)
    digest = hashlib.sha256()
    for _, start, end in sorted(spans):
        digest.update(params[start:end].tobytes())
    return digest.hexdigest()


def describe(spec: RunSpec) -> dict[str, object]:
    """The whole resolved configuration of a run, enough to check its log afterwards."""
    fleet, traced = spec.fleet, spec.traced
    return {
        "experiment": spec.experiment.model_dump(mode="json"),
        "method": {
            axis: describe_component(getattr(spec.method, axis)) for axis in ("submodel", "local", "update", "schedule")
        },
        "resolved": {
            "samples": spec.data.sizes.tolist(),
            **{column: _finite(getattr(fleet, column)) for column in COLUMNS},
            "tensors": list(traced.names),
            "parameters": traced.size,
            "shared": int((owners(traced, spec.index_sets) == len(spec.index_sets)).sum()),
            "groups": {group.name: group.size for group in traced.groups},
            "fragments": [list(part.widths) for part in spec.submodels],
            "shapes": [{"widths": list(w), **asdict(cost)} for w, cost in spec.shapes.items()],
            "stem": None if spec.stem is None else asdict(spec.stem),
            "eval_every": spec.eval_every,
            "limits": asdict(spec.limits),
            "availability": None if spec.timing.availability is None else spec.timing.availability.described(),
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": commit(),
        "command": sys.argv,
    }


def _version(package: str) -> str | None:
    """None for a plain checkout, which is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _finite(column: Floats) -> list[float | None]:
    """For JSON, which has no infinity: None is one."""
    return [value if np.isfinite(value) else None for value in column.tolist()]


def commit() -> str | None:
    """The commit of this source tree, if it is a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
