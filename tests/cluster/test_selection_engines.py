"""Selections of clients, lost and partial work: equal runs on both engines, with any number of workers."""

from pathlib import Path
from typing import Any

import pytest
from same_run import same_on_ray

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FIELDS: dict[str, Any] = {"clients": 6, "hidden": (10,), "local_steps": 4, "compute": "lognormal:1", "quiet": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "heterofl", "participation": "oort:3", "over_selection": 1.3, "rounds": 4},
        {"method": "fednova", "deadline": 0.1, "late": "partial", "rounds": 4},
        {"method": "fedavg", "participation": "power-of-choice:3", "deadline": 0.1, "vmap_batch": 3, "rounds": 4},
        {"method": "fed-raa", "next_client": "oort", "concurrency": 3, "server_shards": 2, "updates": 20},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_run_with_selected_clients_is_the_same_on_ray(
    fields: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    same_on_ray(warm_workers, tmp_path, **FIELDS, **fields)
