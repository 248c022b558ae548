"""Worker groups for tiers of devices, in the form of the command line."""

from contextlib import nullcontext

import pytest
from refusals import refuses

from actors.cluster import placement
from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import WorkerGroup, group_of_clients, parse_group


def test_worker_group_is_parsed_from_its_text() -> None:
    assert parse_group("2:CPU=1,GPU=0.5,site_a=1") == WorkerGroup(2, {"CPU": 1.0, "GPU": 0.5, "site_a": 1.0})


def test_clients_go_to_the_worker_group_of_their_tier() -> None:
    groups = [WorkerGroup(1, {}), WorkerGroup(2, {})]
    assert group_of_clients(groups, "1:0.25,3:0.75", 8).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]  # 8 x 0.25 = 2


@pytest.mark.parametrize(
    ("changes", "field", "value", "name"),
    [
        ({"resources": ("2:CPU=1",)}, "resources", None, "1 group of workers, but compute has 2 tiers"),
        ({"resources": ("CPU=1", "1:CPU=1")}, "resources", "CPU=1", "COUNT:NAME=AMOUNT"),
        ({"resources": ("1:CPU=1,CPU=2", "1:CPU=1")}, "resources", "1:CPU=1,CPU=2", "different names"),
        ({"resources": ("1:CPU=x", "1:CPU=1")}, "resources", "1:CPU=x", "'x'"),
        ({"resources": ("1:CPU=1", "1:CPU=1"), "workers": 3}, "workers", 3, "resources"),
        ({"server_node": "big", "engine": "local"}, "server_node", "big", "engine local"),
        ({"address": "here"}, "address", "here", "HOST:PORT"),
    ],
)
def test_impossible_placement_is_refused(changes: dict[str, object], field: str, value: object, name: str) -> None:
    with refuses(field, name, got=value):
        Experiment(**changes)


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (("1:CPU=1", "1:phone=1"), ("1 phone", "has 0")),
        (("2:CPU=1", "1:CPU=2.5"), ("4.5 CPU", "has 4")),
        (("2:GPU=0.3", "2:GPU=0.2"), None),
    ],
)
def test_private_cluster_refuses_workers_that_would_wait_forever(
    texts: tuple[str, ...], names: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement.runtime, "resources", lambda: {"CPU": 4.0, "GPU": 1.0})
    with refuses("resources", *names, "--address") if names else nullcontext():
        placement.refuse_missing_resources(map(parse_group, texts))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1:CPU=4,TPU=1", "TPU"),
        ("1:CPU=5", "5 CPU"),
        ("1:CPU=2,GPU=0.5", None),
        # Other workers may wait until a worker of this group ends.
        ("9:CPU=4", None),
    ],
)
def test_resource_that_no_node_has_is_named(text: str, names: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "TPU": 8.0}},
    ]
    monkeypatch.setattr(placement.runtime, "nodes", lambda: nodes)
    warning = placement.find_missing_resource([parse_group("1:CPU=1"), parse_group(text)])
    assert warning is None if names is None else names in str(warning)
