"""The trials with bad clients find the client in the log and in the summary of a run."""

from pathlib import Path

import numpy as np

import fedraa as fl
from benchmarks.system.chaos_clients import names_client


def test_names_client_is_true_for_the_quarantined_client_only(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    y = x[:, :3].argmax(axis=1)
    x[5] = np.nan
    dataset = fl.Dataset("nan", x[:40], y[:40], x[40:], y[40:], classes=3)
    history = fl.run(
        method="fedavg",
        dataset=dataset,
        allow_nan=True,
        client_retries=0,
        clients=4,
        hidden=(4,),
        local_steps=2,
        batch_size=40,
        rounds=2,
        engine="local",
        quiet=True,
        out=tmp_path / "run",
    )
    [drop] = [line for line in history.lines() if line["kind"] == "drop"]
    client = int(drop["client"])
    assert names_client(history, client, ".*not finite.*|.*nan.*")
    assert not names_client(history, client, "another reason")
    assert not names_client(history, (client + 1) % 4, ".*")
