"""Energy, links that change with time, and FedRobust's adversaries, which clients keep: equal on both engines."""

from pathlib import Path
from typing import Any

import pytest
from same_run import same_on_ray

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.mark.parametrize(("method", "limit"), [("fed-raa", {"updates": 12}), ("fedrobust", {"rounds": 3})])
def test_costs_and_kept_adversaries_give_the_same_run_on_ray(
    method: str, limit: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text(
        "compute,downlink,uplink,watts_train,watts_up\n1e7,1e5,5e4,4,1\n4e7,1e6,5e5,8,1\n2e7,2e5,3e5,3,1\n"
    )
    links = tmp_path / "links.csv"
    links.write_text("client,end,downlink,uplink\n0,0.02,1e5,1e5\n0,0.05,1e4,2e4\n")
    fields: dict[str, Any] = {
        "method": method,
        "clients": 3,
        "hidden": (8,),
        "local_steps": 2,
        "units": "physical",
        "compute": str(devices),
        "links": links,
        "quiet": True,
        **limit,
    }
    local, on_ray = same_on_ray(warm_workers, tmp_path, **fields)
    assert on_ray.summary["energy"] == local.summary["energy"]
