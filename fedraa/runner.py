"""One run over one pool: from the first dispatch to a complete run directory."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from fedraa.assembly import Assembly
from fedraa.fleet import COLUMNS, Floats
from fedraa.history import CONFIG, MODEL, SUMMARY, EventLog, History
from fedraa.loop import Loop, Progress
from fedraa.messages import Vector
from fedraa.pool import Pool
from fedraa.submodels.indices import owners

PACKAGES = ("fedraa", "numpy", "ray", "torch")


class Runner:
    """Hosts the loop of one run. It lives in the driver, or in the server actor."""

    def __init__(
        self,
        assembly: Assembly,
        directory: Path,
        pool: Pool,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._assembly = assembly
        self._directory = directory
        write_atomically(directory / CONFIG, json.dumps(describe(assembly), indent=2) + "\n")
        self._log = EventLog(directory)
        experiment = assembly.experiment
        self._loop = Loop(
            assembly.server(self._log.record),
            pool,
            self._log,
            limits=assembly.limits,
            eval_every=assembly.eval_every,
            jitter=experiment.jitter,
            seed=experiment.seed,
            wall=assembly.wall,
            watch=watch,
        )

    def stop(self) -> None:
        """Ends the run soon; may be called from another thread."""
        self._loop.stop()

    def execute(self) -> None:
        """Runs to the end and writes the model and the summary."""
        reason = self._loop.run()
        params = self._loop.server.params
        digest = sha256(self._assembly, params)
        self._log.record("end", self._loop.now, reason=reason, step=self._loop.server.step, model_sha256=digest)
        self._log.close()
        module = self._assembly.recipe.evaluator(self._assembly.data, "cpu").prepare(params)
        partial = self._directory / (MODEL + ".partial")
        torch.save(module.state_dict(), partial)
        os.replace(partial, self._directory / MODEL)
        summary = summarise(History(self._directory)) | {"time_to_target": self._loop.time_to_target}
        write_atomically(self._directory / SUMMARY, json.dumps(summary, indent=2) + "\n")


def summarise(history: History) -> dict[str, object]:
    """Totals of a log that has ended."""
    lines = history.lines()
    end = lines[-1]
    commits = [line for line in lines if line["kind"] == "commit"]
    staleness = [_int(line["staleness"]) for line in commits] or [0]
    evals = history.evals
    return {
        "method": dict(history.config["experiment"])["method"],  # type: ignore[call-overload]  # JSON
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


def sha256(assembly: Assembly, params: Vector) -> str:
    """Digest of the parameters' float32 bytes in the order of their names."""
    traced = assembly.traced
    spans = zip(traced.names, traced.offsets, (*traced.offsets[1:], traced.size), strict=True)
    digest = hashlib.sha256()
    for _, start, end in sorted(spans):
        digest.update(params[start:end].tobytes())
    return digest.hexdigest()


def describe(assembly: Assembly) -> dict[str, object]:
    """The whole resolved configuration of a run, enough to check its log afterwards."""
    fleet, traced = assembly.fleet, assembly.traced
    return {
        "experiment": assembly.experiment.model_dump(mode="json"),
        "method": {
            axis: _choice(getattr(assembly.method, axis)) for axis in ("submodel", "local", "update", "schedule")
        },
        "resolved": {
            "samples": assembly.data.sizes.tolist(),
            **{column: _finite(getattr(fleet, column)) for column in COLUMNS},
            "tensors": list(traced.names),
            "parameters": traced.size,
            "shared": int((owners(traced, assembly.index_sets) == len(assembly.index_sets)).sum()),
            "groups": {group.name: group.size for group in traced.groups},
            "fragments": [list(part.widths) for part in assembly.parts],
            "shapes": [{"widths": list(w), **asdict(cost)} for w, cost in assembly.shapes.items()],
            "eval_every": assembly.eval_every,
            "limits": asdict(assembly.limits),
        },
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "commit": _commit(),
        "command": sys.argv,
    }


def _finite(column: Floats) -> list[float | None]:
    """For JSON, which has no infinity: None is one."""
    return [value if np.isfinite(value) else None for value in column.tolist()]


def _choice(choice: object) -> dict[str, object]:
    return {"kind": type(choice).__name__, **asdict(choice)}  # type: ignore[call-overload]  # a dataclass


def _commit() -> str | None:
    """The commit of this source tree, if it is a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write_atomically(path: Path, text: str) -> None:
    """Whole or not at all: written beside its place, then moved there."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
