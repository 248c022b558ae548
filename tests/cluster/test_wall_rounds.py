"""Rounds on the wall clock with real workers: deadlines, partial work and over-selection in seconds."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from execution import run_warm
from torch import nn

import fedraa
from fedraa.rundir.history import History

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]
# Workers cannot import a test.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

FIELDS: dict[str, Any] = {"clients": 2, "clock": "wall", "time_scale": 1e-3, "rounds": 6, "eval_every": 6}
STEP_S = 0.03


class SlowModel(nn.Module):
    """A linear model for digits, of which each training step takes at least 30 ms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(STEP_S)
        return self.linear(x.flatten(1))


def count_by_round(history: History) -> list[dict[str, int]]:
    """Return the numbers of `commit` and `lost` lines of each round."""
    rounds: list[dict[str, int]] = [{"commit": 0, "lost": 0}]
    for line in history.lines():
        if line["kind"] == "round":
            rounds.append({"commit": 0, "lost": 0})
        elif line["kind"] in rounds[-1]:
            rounds[-1][line["kind"]] += 1
    return rounds[:-1]


def test_partial_work_arrives_before_the_deadline(warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    """A task of 60 steps takes 1.8 s. Tasks are lost until their steps fit into the deadline of one second."""
    fields = {**FIELDS, "method": "fednova", "local_steps": 60, "deadline": 1.0, "late": "partial"}
    history = run_warm(warm_workers, tmp_path / "run", model=SlowModel(), **fields)
    rounds = count_by_round(history)
    assert rounds[0] == {"commit": 0, "lost": 2}
    assert sum(counts["commit"] for counts in rounds) > 0
    steps = [line.get("cut_at", 60) for line in history.lines() if line["kind"] == "dispatch"]
    assert max(steps[2:]) <= 1.0 / STEP_S
    assert "consistent" in fedraa.replay(history.directory)


def test_over_selection_ends_a_round_with_the_first_answers(warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    fields = {**FIELDS, "clients": 3, "method": "fedavg", "participation": "sample:2", "over_selection": 1.5}
    history = run_warm(warm_workers, tmp_path / "run", model=SlowModel(), local_steps=4, **fields)
    assert count_by_round(history) == [{"commit": 2, "lost": 1}] * 6
    assert "consistent" in fedraa.replay(history.directory)
