"""Robust aggregators and attacks: equal runs on both engines, with any number of workers."""

from pathlib import Path
from typing import Any

import pytest
from same_run import same_on_ray

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FIELDS: dict[str, Any] = {"clients": 6, "hidden": (10,), "local_steps": 2, "attackers": 0.34, "quiet": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "heterofl", "aggregator": "median", "attack": "alie", "rounds": 3},
        {"method": "fedavg", "aggregator": "krum", "attack": "backdoor(scale=2.0)", "rounds": 3},
        {"method": "fedbuff", "aggregator": "multi-krum", "attack": "ipm", "buffer_size": 5, "updates": 4},
        {"method": "fed-raa", "attack": "gaussian", "server_shards": 2, "updates": 20},
        {"method": "fedavg", "aggregator": "trimmed-mean", "attack": "label-flip", "vmap_batch": 3, "rounds": 3},
    ],
    ids=lambda fields: f"{fields['method']}-{fields['attack']}",
)
def test_attacked_run_is_the_same_on_ray(fields: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    same_on_ray(warm_workers, tmp_path, **FIELDS, **fields)
