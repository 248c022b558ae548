"""Check that more than 70 small runs write the same bits with this checkout as with an earlier commit, the base.

The runs use the virtual clock. They cover every built-in method, and all options that have separate code. Two processes
execute this file: one imports `fedraa` from this checkout, one from the base. So the runs use only the public
interface.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Keys of logs that have a new name since the base commit: the old name and the new name.
RENAMED: dict[str, str] = {
    "mix": "weight",
    "what": "error",
    "global_staleness": "staleness_total",
    "counts": "fragment_updates",
    "feasible": "feasible_fragments",
}
# Keys of summary.json that depend on real time.
REAL_TIME = {"wall", "shards"}
# Significant digits of `drift` in the log. Since commit 1cd3c25c, its norms are computed in float32.
DRIFT_DIGITS = 4
# Fields of an experiment that have a new name since the base commit: the new name and the old name.
RENAMED_FIELDS = {"polyak_fraction": "average", "vmap_batch": "stack"}
SHARED: dict[str, Any] = {"clients": 6, "hidden": (16,), "local_steps": 3, "seed": 7, "engine": "local", "quiet": True}
UPDATES, ROUNDS = 24, 3
INTERRUPTED_AT = (1, 2, 3)

Digests = dict[str, str]
"""SHA-256 of events.jsonl (with a rounded `drift`), evals.csv and summary.json without real times, and of the model."""


def main(base: str = "HEAD", /, only: tuple[str, ...] = ()) -> None:
    """Execute the runs with the code of the commit BASE and of this checkout, and compare their files bit for bit.

    Args:
        base: A commit, branch or tag.
        only: Names of the runs to execute (default: all of them).
    """
    if only:
        # The import is here, because the base commit may lack this function.
        from benchmarks.system.option_checks import refuse_unknown_names

        refuse_unknown_names("only", only, _list_experiments())
    with (
        _checkout_base(base) as directory,
        _start_experiments(ROOT, only) as runs_here,
        _start_experiments(directory, only) as runs_at_base,
    ):
        digests_here = _read_digests(runs_here, "here")
        digests_at_base = _read_digests(runs_at_base, base)
    names = list(digests_here | digests_at_base)
    differences = (_describe_difference(name, digests_here.get(name), digests_at_base.get(name)) for name in names)
    differing = [line for line in differences if line]
    # The import is here, because the base commit may lack this function.
    from fedraa.cli.console import print_line

    print_line("\n".join([*differing, f"{len(names) - len(differing)} of {len(names)} runs are equal"]))
    if differing or not names:
        sys.exit(1)


@contextmanager
def _checkout_base(base: str) -> Iterator[Path]:
    """Yield the folder of a temporary checkout of the commit `base`.

    Raises InputError if there is no such commit.
    """
    with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
        directory = Path(folder) / "base"
        added = subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(directory), base],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if added.returncode:
            # The import is here, because the base commit may lack this class.
            from fedraa.errors import InputError

            raise InputError("base", got=base, expected=f"a commit of this repository ({added.stderr.strip()})")
        try:
            yield directory
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(directory)], cwd=ROOT, check=True)


def _start_experiments(root: Path, only: tuple[str, ...]) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Start a process that executes the runs with the code in the folder `root`. The end of the block kills it."""
    # The import is here, because the base commit may lack this function.
    from benchmarks.system.processes import start_tree

    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", str(Path(__file__)), *only]
    return start_tree(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)


def _read_digests(process: "subprocess.Popen[str]", label: str) -> dict[str, Digests]:
    """Read the digests that a process prints, one run per line, and show its progress."""
    assert process.stdout is not None
    digests: dict[str, Digests] = {}
    for line in process.stdout:
        name, values = json.loads(line)
        digests[name] = values
        sys.stderr.write(f"{label}: {len(digests)} {name}\n")
    if process.wait():
        # The import is here, because the base commit may lack this class.
        from fedraa.errors import InputError

        raise InputError("same_bits", f"the experiments of {label} ended with exit code {process.returncode}")
    return digests


def _describe_difference(name: str, here: Digests | None, at_base: Digests | None) -> str | None:
    """Return a sentence that names the differing files of two runs; None if the runs are equal."""
    if at_base is None:
        return f"{name}: ran only here"
    if here is None:
        return f"{name}: ran only at the base"
    parts = [part for part in here if here[part] != at_base.get(part)]
    if not parts:
        return None
    return f"{name}: {', '.join(parts)} differ"


def digests_of(directory: Path) -> Digests:
    """Return the digests of a finished run's files and of its final model."""
    events = []
    for line in (directory / "events.jsonl").read_text().splitlines():
        event = {RENAMED.get(key, key): value for key, value in json.loads(line).items() if key != "wall"}
        if "drift" in event:
            event["drift"] = float(f"{event['drift']:.{DRIFT_DIGITS}g}")
        events.append(json.dumps(event, sort_keys=True))
    rows = [line.split(",") for line in (directory / "evals.csv").read_text().splitlines()]
    wall = rows[0].index("wall")
    evals = [",".join(row[:wall] + row[wall + 1 :]) for row in rows]
    summary = json.loads((directory / "summary.json").read_text())
    totals = {RENAMED.get(key, key): value for key, value in summary.items() if key not in REAL_TIME}
    return {
        "events": _hash_lines(events),
        "evals": _hash_lines(evals),
        "model": str(summary["model_sha256"]),
        "summary": _hash_lines([json.dumps(totals, sort_keys=True)]),
    }


def _hash_lines(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _list_experiments() -> dict[str, Callable[[Path], object]]:
    """Return the runs by name. Each is a function that executes the run in a directory."""
    options: dict[str, dict[str, Any]] = {
        "concurrency": {"method": "fedbuff", "concurrency": 3},
        "failing-client": {"method": "fed-raa", "client_retries": 2, "allow_nan": True, "dataset": _with_nan()},
        "quarantine": {"method": "fedavg", "client_retries": 0, "allow_nan": True, "dataset": _with_nan()},
        "norm-bound": {"method": "fed-raa", "max_update_norm": "auto"},
        "cohort": {"method": "fedavg", "participation": "sample:3"},
        "topk": {"method": "fedavg", "compress": "topk:0.1"},
        "8bit": {"method": "fedasync", "compress": "8bit"},
        "average": {"method": "fedasync", "polyak_fraction": 0.2},
        "auto-capacities": {"method": "heterofl", "capacities": "auto"},
        "auto-steps": {"method": "fedasync", "local_steps": "auto"},
        "stack": {"method": "fedavg", "vmap_batch": 3},
        "availability": {"method": "fedasync", "availability": Path("daily:0.5"), "availability_period": 2.0},
        "target": {"method": "fed-raa", "target_accuracy": 0.3},
    }
    named = {name: {"method": name} | _model_fields(name) for name in _method_names()}
    on_ray = {
        f"ray-{name}": {"method": name, "engine": "ray", "workers": 2}
        for name in ("fed-raa", "fedasync", "fed-quilt", "fedavg", "scaffold")
    }
    on_ray["ray-fed-raa"]["server_shards"] = 2
    plain = {name: _plain_run(fields) for name, fields in (named | options | on_ray).items()}
    interrupted = {f"resume-{name}": _interrupted_run(name) for name in ("fed-raa", "fedavg", "scaffold")}
    return plain | interrupted


@cache
def _method_names() -> list[str]:
    """Return the names of all methods from the command `fedraa methods`."""
    command = [sys.executable, "-m", "fedraa", "methods", "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return [row["name"] for row in rows]


def _model_fields(method: str) -> dict[str, Any]:
    """Return the fields `model` and `hidden` for a method that needs a special model; an empty dict for others."""
    import torch
    from torch import nn

    import fedraa as fl

    if method in ("depthfl", "depthfl-feddyn"):
        return {"model": "mlp-exits", "hidden": (16, 16)}
    if method not in ("hetlora", "flora", "fedbn"):
        return {}
    torch.manual_seed(0)
    if method == "fedbn":
        norm = nn.BatchNorm1d(16)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), norm, nn.ReLU(), nn.Linear(16, 10))
        return {"model": model, "hidden": (200,)}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    return {"model": fl.lora(model, rank=4, merge=method == "flora"), "hidden": (200,)}


def _with_nan() -> Any:
    """Return a data set in which one client has a NaN in a training sample."""
    import numpy as np

    import fedraa as fl

    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 8)).astype(np.float32)
    y = x[:, :3].argmax(axis=1)
    x[5] = np.nan
    return fl.Dataset("nan", x[:180], y[:180], x[180:], y[180:], classes=3)


def _limit_fields(method: str) -> dict[str, int]:
    import fedraa as fl

    if fl.method(method).asynchronous:
        return {"updates": UPDATES}
    return {"rounds": ROUNDS}


def _plain_run(fields: Mapping[str, Any]) -> Callable[[Path], object]:
    """Return a function that executes a run with these fields. An older fedraa gets the old names of fields."""
    import fedraa as fl

    known = fl.Experiment.model_fields
    values = {}
    for name, value in fields.items():
        known_name = name if name in known else RENAMED_FIELDS.get(name, name)
        values[known_name] = value
    return lambda out: fl.run(**{**SHARED, **_limit_fields(fields["method"]), **values, "out": out})


def _interrupted_run(method: str) -> Callable[[Path], object]:
    """Return a function that interrupts a run at three evaluations and resumes it after each."""
    import fedraa as fl

    class Stop(fl.Callback):
        def __init__(self, evaluations: int) -> None:
            self.left = evaluations

        def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
            self.left -= 1
            if self.left < 0:
                raise InterruptedError
            return False

    def run_interrupted(out: Path) -> None:
        with suppress(InterruptedError):
            limit = {key: 2 * value for key, value in _limit_fields(method).items()}
            fl.run(**{**SHARED, **limit, "method": method, "checkpoint_every": 1, "out": out}, callbacks=[Stop(1)])
        for evaluations in INTERRUPTED_AT[1:]:
            with suppress(InterruptedError):
                fl.resume(out, callbacks=[Stop(evaluations)])
        fl.resume(out)

    return run_interrupted


def _run_here(only: list[str]) -> None:
    """Execute the runs with the imported package `fedraa`, and print a JSON line for each.

    Names in `only` that this package does not know are left out. An older fedraa lacks the newer methods.
    """
    experiments = _list_experiments()
    for name in only or experiments:
        if name not in experiments:
            continue
        with tempfile.TemporaryDirectory() as folder:
            experiments[name](Path(folder) / "run")
            sys.stdout.write(json.dumps([name, digests_of(Path(folder) / "run")]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _run_here(sys.argv[1:])
