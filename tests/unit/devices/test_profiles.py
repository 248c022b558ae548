"""The profiles of real devices: each has a source, and a fleet uses only numbers that the sources state."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from fedraa.devices.compute_speeds import make_fleet
from fedraa.devices.fleet import Fleet
from fedraa.devices.profiles import PROFILES

GUIDE = Path(__file__).parents[3] / "docs/guides/fleet.md"


def fleet(shares: str, clients: int = 4) -> Fleet:
    return make_fleet(f"profiles({shares!r})", clients, units="physical", seed=0)


def test_a_fleet_has_the_shares_of_its_profiles() -> None:
    """HPL: 30.249 Gflops at 11 W on a Raspberry Pi 5, and 64.555 Gflops at 24 W on a Framework 12."""
    devices = fleet("raspberry-pi-5:0.75,framework-12:0.25")
    assert devices.compute.tolist() == [30.249e9] * 3 + [64.555e9]
    assert devices.watts["watts_train"].tolist() == [11, 11, 11, 24]
    assert list(devices.watts) == ["watts_train"]
    assert np.isinf(devices.memory).all()


def test_an_unknown_power_of_one_device_leaves_no_watts() -> None:
    devices = fleet("raspberry-pi-5:0.5,tesla-v100:0.5")
    assert devices.watts == {}
    assert devices.memory.tolist() == [np.inf, np.inf, 32e9, 32e9]


@pytest.mark.parametrize("shares", ["raspberry-pi-5:0.5", "commodore-64:1", "raspberry-pi-5", "raspberry-pi-5:x", ""])
def test_wrong_shares_are_refused(shares: str) -> None:
    with refuses("compute: profiles"):
        fleet(shares)


def test_profiles_need_physical_units() -> None:
    with refuses("units", got="relative"):
        make_fleet("profiles('raspberry-pi-5:1')", 4, units="relative", seed=0)


def test_sixteen_profiles_are_in_the_guide_with_their_sources() -> None:
    text = GUIDE.read_text()
    assert len(PROFILES) == 16
    for name, profile in PROFILES.items():
        assert profile.source.startswith("https://")
        watts = "–" if profile.watts is None else f"{profile.watts:g}"
        assert f"| [{name}]({profile.source}) | {profile.kind} | {profile.compute / 1e9:g} | {watts} |" in text
