"""User-defined fleets: a function returns the columns, which get the same checks as the columns of a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.devices.compute_speeds import make_fleet
from fedraa.devices.fleet import Fleet


def fleet(compute: object, clients: int = 3) -> Fleet:
    return make_fleet(compute, clients, units="relative", seed=0)


def ramp(clients: int, rng: np.random.Generator) -> Any:
    return 1 + np.arange(clients)


def broken(clients: int, rng: np.random.Generator) -> Any:
    raise KeyError("speed")


class Mobile:
    """A fleet on a slow network. One of `every` devices has a fast link."""

    def __init__(self, every: int = 2) -> None:
        self.every = every

    def __call__(self, clients: int, rng: np.random.Generator) -> dict[str, Any]:
        compute = np.where(np.arange(clients) % self.every, 1.0, 10.0)
        return {"compute": compute, "downlink": rng.uniform(1, 2, clients), "latency": [0.1] * clients}


def test_fleet_function_returns_compute_speeds_or_columns() -> None:
    assert fleet(ramp).compute.tolist() == [1, 2, 3]
    assert fleet(ramp).latency.tolist() == [0, 0, 0]
    mobile = fleet(Mobile(2))
    assert mobile.compute.tolist() == [10, 1, 10]
    assert mobile.latency.tolist() == [0.1] * 3
    assert np.isinf(mobile.uplink).all()


@pytest.mark.parametrize(
    "compute", [Mobile(3), f"{__name__}:Mobile(every=3)", {"kind": f"{__name__}:Mobile", "every": 3}]
)
def test_fleet_object_path_and_mapping_give_the_same_fleet(compute: object) -> None:
    devices, expected = fleet(compute), fleet(Mobile(3))
    assert devices.compute.tolist() == expected.compute.tolist()
    # The values are drawn from the run's seed.
    assert devices.downlink.tolist() == expected.downlink.tolist()


def fleet_function(columns: Any) -> Callable[..., Any]:
    def mine(clients: int, rng: np.random.Generator) -> Any:
        return columns

    mine.__qualname__ = "mine"
    return mine


@pytest.mark.parametrize(
    ("columns", "field", "shown"),
    [
        ([1.0, 2.0], "mine compute", "[2]"),
        (2.0, "mine compute", "3 clients"),
        ([1, -2, 1], "mine client 1 compute", "-2.0"),
        ([1, 1, np.inf], "mine client 2 compute", "inf"),
        ({"compute": [1] * 3, "latency": [0, np.nan, 0]}, "mine client 1 latency", "nan"),
        ({"speed": [1] * 3}, "mine columns", "['speed']"),
        (["fast"] * 3, "mine", "float: 'fast'"),
        (None, "mine compute", "3 clients"),
    ],
)
def test_wrong_result_of_a_fleet_function_is_refused(columns: Any, field: str, shown: str) -> None:
    with refuses(f"compute: {field}", shown):
        fleet(fleet_function(columns))


@pytest.mark.parametrize(
    ("compute", "shown"),
    [
        (3, "3"),
        ("absent_ext:fleet", "absent_ext:fleet"),
        (f"{__name__}:Mobile(count=1)", "count"),
        (f"{__name__}:broken", "correct broken .test_own_fleet.py, line "),
        ("lognormal:x", "'x'"),
    ],
)
def test_compute_that_makes_no_fleet_is_refused(compute: object, shown: str) -> None:
    with pytest.raises(ValueError, match=f"^compute: .*{shown}"):
        fleet(compute)


@pytest.mark.parametrize("compute", [ramp, f"{__name__}:ramp", "devices.csv"])
def test_resources_by_tier_require_tiers_of_compute_speed(compute: object) -> None:
    with pytest.raises(ValueError, match=r"^resources: .*--compute 1:0.5,3:0.5"):
        fl.Experiment(compute=compute, resources=("1:CPU=1", "1:CPU=1"))


def test_custom_fleet_is_recorded_in_the_configuration(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"clients": 3, "engine": "local", "updates": 3, "quiet": True, "hidden": (8,)}
    history = fl.run(fl.Experiment(**flags, compute=Mobile(3), out=tmp_path / "run"))
    assert history.config["experiment"]["compute"] == f"{__name__}:Mobile(every=3)"
    assert history.config["resolved"]["compute"] == [10.0, 1.0, 1.0]
    again = fl.run(fl.Experiment(**flags, compute=f"{__name__}:Mobile(every=3)", out=tmp_path / "again"))
    assert history.summary["model_sha256"] == again.summary["model_sha256"]
