"""Private runs have the same bits on Ray and in one process."""

from pathlib import Path
from typing import Any

import pytest
from same_run import same_on_ray

pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FIELDS: dict[str, Any] = {"clients": 6, "hidden": (10,), "local_steps": 2, "quiet": True}

# A mean over the clients that have a label would reveal these clients.
NO_HEAD = {"update.owned_head": False}


@pytest.mark.parametrize(
    "fields",
    [
        {
            "method": "heterofl",
            "weights": "uniform",
            "override": NO_HEAD,
            "rounds": 3,
            "privacy": "central",
        },
        {"method": "fedbuff", "buffer_size": 3, "updates": 4, "privacy": "central-adaptive(bit_noise=2.0)"},
        {"method": "fed-raa", "updates": 12, "privacy": "local"},
    ],
    ids=lambda fields: fields["method"],
)
def test_private_run_is_the_same_on_ray(fields: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    same_on_ray(warm_workers, tmp_path, **FIELDS, **fields)
