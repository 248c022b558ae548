"""Runs with personal models: a killed run resumes with the same bits, replays, and differs from one without them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedraa
from benchmarks.system.killing import KillAt, Killed
from fedraa import Experiment, resume, run
from fedraa.cli.plan import client_bytes
from fedraa.engine.build import build_run
from fedraa.engine.memory_check import Need
from fedraa.rundir.history import History

SMALL: dict[str, Any] = {
    "engine": "local",
    "hidden": (8,),
    "clients": 4,
    "partition": "labels:3",
    "local_steps": 3,
    "lr": 0.05,
    "checkpoint_every": 2,
    "seed": 5,
    "quiet": True,
}
DYNAMIC: list[dict[str, Any]] = [
    {"method": "feddyn", "rounds": 5, "participation": "sample:3"},
    {"method": "moon", "rounds": 5, "participation": "sample:3"},
    {"method": "feddyn-async", "updates": 10, "buffer_size": 2},
    {"method": "fed-raa", "updates": 12, "compress": "topk:0.1", "error_feedback": "ef"},
    {"method": "heterofl", "rounds": 5, "compress": "topk:0.1", "error_feedback": "ef21"},
]
RUNS: list[dict[str, Any]] = [
    {"method": "fedper", "rounds": 5, "participation": "sample:3"},
    {"method": "fedrep", "rounds": 5},
    {"method": "lg-fedavg", "rounds": 5},
    {"method": "fed-raa", "updates": 20, "personal_layers": ("last-layer",)},
    {"method": "ditto", "rounds": 5, "participation": "sample:3"},
    {"method": "apfl", "rounds": 5},
    {"method": "pfedme", "rounds": 5, "override": {"local.algorithm.personal_lr": 0.02}},
]


def events(directory: Path) -> list[dict[str, object]]:
    """Return the log without real times."""
    return [{key: value for key, value in line.items() if key != "wall"} for line in History(directory).lines()]


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("ditto", lambda size, head: size),
        ("apfl", lambda size, head: size + 1),
        ("fedper", lambda size, head: head),
        ("lg-fedavg", lambda size, head: size - head),
    ],
)
def test_memory_counts_the_values_of_each_client(method: str, values: Callable[[int, int], int]) -> None:
    plain = build_run(Experiment(**SMALL, method="fedavg", rounds=2))
    spec = build_run(Experiment(**SMALL, method=method, rounds=2))
    # The last layer has 8 inputs, 10 outputs and 10 biases.
    expected = 4 * values(plain.params.size, 90)
    need, of_plain = Need.of(spec), Need.of(plain)
    assert need.per_client - of_plain.per_client == expected
    assert need.server - of_plain.server == 4 * expected
    assert client_bytes(spec) - client_bytes(plain) == expected


@pytest.mark.parametrize("fields", DYNAMIC, ids=lambda fields: str(fields["method"]))
def test_killed_run_resumes_with_the_kept_terms(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = run(Experiment(**SMALL, **fields, out=tmp_path / "whole"))
    with pytest.raises(Killed):
        run(Experiment(**SMALL, **fields, out=tmp_path / "killed"), callbacks=[KillAt(3)])
    resumed = resume(tmp_path / "killed")
    assert events(resumed.directory) == events(whole.directory)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    fedraa.replay(resumed.directory)


@pytest.mark.parametrize("fields", RUNS, ids=lambda fields: str(fields["method"]))
def test_killed_run_resumes_with_the_personal_models(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = run(Experiment(**SMALL, **fields, out=tmp_path / "whole"))
    kill_at = 3 if "rounds" in fields else 11
    with pytest.raises(Killed):
        run(Experiment(**SMALL, **fields, out=tmp_path / "killed"), callbacks=[KillAt(kill_at)])
    resumed = resume(tmp_path / "killed")
    assert events(resumed.directory) == events(whole.directory)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    personal = whole.evals.filter(like="personal_")
    np.testing.assert_array_equal(resumed.evals.filter(like="personal_"), personal)
    assert personal["personal_mean"].iloc[-1] > whole.evals["client_mean"].iloc[-1]
    fedraa.replay(resumed.directory)
