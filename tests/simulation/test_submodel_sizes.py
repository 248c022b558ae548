"""Sampled submodels of the same size share norms and mean losses, although their labels differ in each round."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equal_runs import SMALL

import fedraa
from fedraa.ledger.selection_context import ClientStats
from fedraa.messages import Floats, Task, Update
from fedraa.rundir.checkpoint import read_checkpoint
from fedraa.rundir.file_names import CHECKPOINTS
from fedraa.server.update_checks import NORM_FACTOR, Bounds

# Of 8 hidden units, clients train 8, 4, 2, 1 and 1.
SIZES = 4


@pytest.fixture
def seen_losses(monkeypatch: pytest.MonkeyPatch) -> dict[int, Floats]:
    """Record the losses that the selection of each round gets."""
    by_round: dict[int, Floats] = {}
    make_view = ClientStats.view

    def view(stats: ClientStats, candidates: Any, count: int, *, step: int, now: float) -> Any:
        context = make_view(stats, candidates, count, step=step, now=now)
        by_round[step] = context.losses.copy()
        return context

    monkeypatch.setattr(ClientStats, "view", view)
    return by_round


def relative_losses(lines: Sequence[Any], clients: int) -> dict[int, Floats]:
    """Return the losses before each round, divided by the running means of all tasks with the same download."""
    size_of_task: dict[int, int] = {}
    means: dict[int, float] = {}
    losses = np.full(clients, np.inf)
    sizes = np.zeros(clients, int)
    by_round = {}
    for line in lines:
        if line["kind"] == "dispatch":
            size_of_task[line["task"]] = line["bytes_down"]
        elif line["kind"] == "commit":
            size = size_of_task[line["task"]]
            loss = line["train_loss"]
            means[size] = 0.9 * means[size] + 0.1 * loss if size in means else loss
            losses[line["client"]] = loss
            sizes[line["client"]] = size
        elif line["kind"] == "round":
            other = np.mean(list(means.values()))
            by_round[line["round"] + 1] = losses / [means.get(size, other) for size in sizes]
    assert len(means) == SIZES
    return by_round


@pytest.mark.parametrize("participation", ["oort:4", "power-of-choice:4"])
@pytest.mark.parametrize("method", ["fedrolex", "heterofl"])
def test_losses_are_divided_by_the_running_mean_of_their_size(
    method: str, participation: str, seen_losses: dict[int, Floats], tmp_path: Path
) -> None:
    fields = {**SMALL, "method": method, "participation": participation, "rounds": 12}
    history = fedraa.run(**fields, out=tmp_path / "run")
    expected = relative_losses(list(history.lines()), 8)
    assert len(expected) == 12
    for number in range(4, 12):
        np.testing.assert_allclose(seen_losses[number], expected[number], rtol=1e-12)


def run_with_a_large_update(monkeypatch: pytest.MonkeyPatch, step: int, **fields: Any) -> fedraa.History:
    """Run with small updates, and with updates of norm 5 at one step of the server."""
    judge_update = Bounds.judge_update

    def judge(bounds: Bounds, update: Update, task: Task | None) -> str | None:
        if task is not None and task.step == step:
            params = task.params + np.float32(5 / np.sqrt(task.size))
            update = replace(update, params=params, receipt=None)
        return judge_update(bounds, update, task)

    monkeypatch.setattr(Bounds, "judge_update", judge)
    return fedraa.run(**{**SMALL, "lr": 1e-3, "max_update_norm": "auto", "client_retries": 3, **fields})


@pytest.mark.parametrize(
    "fields",
    [{"method": "fedrolex", "participation": "sample:4", "rounds": 16}, {"method": "fedrolex-async", "updates": 60}],
    ids=lambda fields: fields["method"],
)
def test_update_over_the_median_norm_of_its_size_is_refused(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The norm 5 is below the bound of the first updates, which is at least 20."""
    assert NORM_FACTOR > 5
    step = 14 if "rounds" in fields else 30
    capacities = {"capacities": (1.0, 0.5)}
    history = run_with_a_large_update(monkeypatch, step, **fields, **capacities, out=tmp_path / "run")
    lines = list(history.lines())
    sent = {line["task"] for line in lines if line["kind"] == "dispatch" and line["step"] == step}
    refused = {line["task"] for line in lines if line["kind"] == "drop"}
    assert sent
    assert refused == sent
    assert all("median" in str(line["error"]) for line in lines if line["kind"] == "drop")


@pytest.mark.parametrize(
    ("method", "limit", "selection"),
    [
        ("fedrolex", "rounds", {"participation": "oort:4"}),
        ("fedrolex-async", "updates", {"next_client": "oort", "concurrency": 4}),
    ],
)
def test_checkpoint_does_not_grow_with_the_number_of_labels(
    method: str, limit: str, selection: dict[str, Any], tmp_path: Path
) -> None:
    counts = []
    for steps in (20, 60):
        fields = {**SMALL, "method": method, limit: steps, "max_update_norm": "auto", **selection}
        directory = fedraa.run(**fields, out=tmp_path / str(steps)).directory
        newest = max((directory / CHECKPOINTS).iterdir(), key=lambda path: path.stat().st_mtime_ns)
        counts.append(count_entries(read_checkpoint(newest)))
    assert counts == [(SIZES, SIZES)] * 2


def count_entries(checkpoint: Any) -> tuple[int, int]:
    """Return the number of sizes with norms, and the number of sizes with a mean loss."""
    loop = checkpoint.get("loop", checkpoint)
    stats = loop["server"]["ledger"]["selector"]["stats"]
    return len(loop["bounds"]["seen"]), len(stats["mean_losses"]["means"])
