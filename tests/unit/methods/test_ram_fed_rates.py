"""The learning rate that RAM-Fed multiplies its mean update by, if the clients of a round have different rates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedraa as fl
from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.methods.ram_fed import MemorisedMean


@pytest.mark.parametrize(("schedule", "differ"), [("cosine:auto@local", True), ("constant", False)])
def test_rate_of_a_round_is_the_mean_over_its_clients(
    schedule: str, differ: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With unequal data, clients take different numbers of steps, so their mean rates differ."""
    rates: list[list[float]] = [[]]
    used: list[float] = []
    add, finish = MemorisedMean.add, MemorisedMean.finish

    def record_rate(self: MemorisedMean, contribution: ClientDelta) -> None:
        rates[-1].append(contribution.lr)
        add(self, contribution)

    def record_mean(self: MemorisedMean, totals: RoundTotals) -> Any:
        used.append(totals.lr)
        rates.append([])
        return finish(self, totals)

    monkeypatch.setattr(MemorisedMean, "add", record_rate)
    monkeypatch.setattr(MemorisedMean, "finish", record_mean)
    fields: dict[str, Any] = {"clients": 4, "hidden": (8,), "partition": "lognormal", "local_epochs": 2, "lr": 0.3}
    fields |= {"lr_schedule": schedule, "rounds": 3, "engine": "local", "quiet": True, "batch_size": 16}
    fl.run(method="ram-fed", out=tmp_path / "run", **fields)
    assert len(used) == 3
    for mean, of_clients in zip(used, rates, strict=False):
        assert len(of_clients) == 4
        assert (len(set(of_clients)) > 1) == differ
        assert mean == pytest.approx(np.mean(of_clients), rel=1e-12)
        if not differ:
            assert mean == of_clients[0]
