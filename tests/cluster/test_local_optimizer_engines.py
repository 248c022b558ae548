"""Kept state of local optimizers and results per client: equal on both engines, with any workers and shards."""

from pathlib import Path
from typing import Any

import pytest
from same_run import same

from fedraa import Experiment, run
from fedraa.rundir.file_names import CLIENTS, PARTITION

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FIELDS: dict[str, Any] = {"clients": 6, "hidden": (10,), "local_epochs": 1, "lr": 0.01, "quiet": True}


@pytest.mark.parametrize(
    ("method", "on_ray"),
    [
        ({"method": "fed-raa", "updates": 24, "lr_schedule": "cosine:auto@local"}, {"server_shards": 2}),
        ({"method": "ra-fed", "rounds": 3, "vmap_batch": 3}, {}),
    ],
    ids=["shards", "stacks"],
)
def test_kept_state_gives_the_same_run_on_ray(method: dict[str, Any], on_ray: dict[str, Any], tmp_path: Path) -> None:
    fields = {**FIELDS, **method, "local_optimizer": "adam", "local_optimizer_state": "keep", "client_evals": 2}
    local = run(Experiment(**fields, engine="local", out=tmp_path / "local"))
    run(Experiment(**fields, **on_ray, workers=2, out=tmp_path / "ray"))
    same(tmp_path / "ray", local)
    for name in (CLIENTS, PARTITION):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
