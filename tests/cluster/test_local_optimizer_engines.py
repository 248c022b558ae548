"""The state of local optimizers and the results per client are equal on both engines, with any workers and shards."""

from pathlib import Path
from typing import Any

import pytest
from same_run import same_on_ray

from fedraa.rundir.file_names import CLIENTS, PARTITION

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FIELDS: dict[str, Any] = {"clients": 6, "hidden": (10,), "local_epochs": 1, "lr": 0.01, "quiet": True}


KEPT: dict[str, Any] = {"local_optimizer": "adam", "local_optimizer_state": "keep", "client_evals": 2}


def test_kept_state_gives_the_same_run_on_shards(warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    fields = {**FIELDS, **KEPT, "method": "fed-raa", "updates": 24, "lr_schedule": "cosine:auto@local"}
    check_same_files(warm_workers, tmp_path, **fields, server_shards=2)


def test_kept_state_gives_the_same_run_in_vmap_batches(warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    fields = {**FIELDS, **KEPT, "method": "ra-fed", "rounds": 3, "vmap_batch": 3}
    check_same_files(warm_workers, tmp_path, **fields)


def check_same_files(warm_workers: tuple[Any, ...], folder: Path, **fields: Any) -> None:
    local, on_ray = same_on_ray(warm_workers, folder, **fields)
    for name in (CLIENTS, PARTITION):
        assert (on_ray.directory / name).read_bytes() == (local.directory / name).read_bytes()
