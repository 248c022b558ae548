"""Private runs have the same bits on Ray and in one process."""

from pathlib import Path
from typing import Any

import pytest
from same_run import same

from fedraa import Experiment, run

pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FIELDS: dict[str, Any] = {"clients": 6, "hidden": (10,), "local_steps": 2, "quiet": True}


@pytest.mark.parametrize(
    "fields",
    [
        {
            "method": "heterofl",
            "weights": "uniform",
            "override": {"update.owned_head": False},
            "rounds": 3,
            "privacy": "central",
        },
        {"method": "fedbuff", "buffer_size": 3, "updates": 4, "privacy": "central-adaptive(bit_noise=2.0)"},
        {"method": "fed-raa", "updates": 12, "privacy": "local"},
    ],
    ids=lambda fields: fields["method"],
)
def test_private_run_is_the_same_on_ray(fields: dict[str, Any], tmp_path: Path) -> None:
    local = run(Experiment(**FIELDS, **fields, engine="local", out=tmp_path / "local"))
    run(Experiment(**FIELDS, **fields, workers=2, out=tmp_path / "ray"))
    same(tmp_path / "ray", local)
