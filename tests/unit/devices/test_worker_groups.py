"""Kinds of workers for tiers of devices, as they are written on the command line."""

import pytest

from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import WorkerGroup, group_of_clients, parse_group


def test_a_worker_group_is_read_as_it_is_written() -> None:
    assert parse_group("2:CPU=1,GPU=0.5,site_a=1") == WorkerGroup(2, {"CPU": 1.0, "GPU": 0.5, "site_a": 1.0})


def test_clients_go_to_the_worker_group_of_their_tier() -> None:
    groups = [WorkerGroup(1, {}), WorkerGroup(2, {})]
    assert group_of_clients(groups, "1:0.25,3:0.75", 8).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]  # 8 x 0.25 = 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"resources": ("2:CPU=1",)}, "resources: 1 kinds of workers for the 2 tiers of capabilities '1:0.5,3:0.5'"),
        ({"resources": ("CPU=1", "1:CPU=1")}, "resources: got 'CPU=1'; takes COUNT:NAME=AMOUNT"),
        ({"resources": ("1:CPU=x", "1:CPU=1")}, "resources: 'x' in '1:CPU=x' is no amount"),
        ({"resources": ("1:CPU=1", "1:CPU=1"), "workers": 3}, "workers: 3 does not match the 2 of resources"),
        ({"server_node": "big", "engine": "local"}, "server_node: got 'big'; it has no effect with engine local"),
        ({"address": "here"}, "address: got 'here'; takes auto, HOST:PORT or ray://HOST:PORT"),
    ],
)
def test_what_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        Experiment(**changes)
    assert str(error.value).startswith(said)
