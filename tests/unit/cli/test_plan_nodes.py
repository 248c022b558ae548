"""What a plan states about the nodes of a cluster: their memory and the traffic between them."""

from typing import Any

import pytest
from refusals import refuses

from fedraa import Experiment
from fedraa.cli.main import main
from fedraa.cli.plan import show_plan
from fedraa.cli.plan_cluster import NodeNeeds
from fedraa.engine.build import build_run


def test_plan_prints_the_memory_and_the_traffic_of_a_cluster_node(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--method fedavg --rounds 2 --clients 20 --hidden 400 400 --workers 5 --nodes 2"
    assert main(["plan", *flags.split()]) == 0
    told = {words[0]: words for words in map(str.split, capsys.readouterr().out.splitlines()) if words}
    # The model has 64 * 400 + 400 + 400 * 400 + 400 + 400 * 10 + 10 parameters of 4 bytes. One node has three workers.
    model = 4 * 190_410
    # The digits have 1,437 training and 360 test samples of 64 float32 and a label of 8 bytes.
    data = 1797 * (4 * 64 + 8)
    fields: dict[str, Any] = {"method": "fedavg", "rounds": 2, "clients": 20, "hidden": (400, 400), "workers": 5}
    needs = NodeNeeds.of(build_run(Experiment(**fields)), 2)
    assert needs.task == model
    assert needs.data == pytest.approx(data, abs=8)
    # Each worker has two calls, and one more model is evaluated.
    assert needs.stored == needs.data + (2 * 3 + 1) * model
    assert needs.sent == (2 * 2 + 1) * model
    assert told["each"][3:6] == ["MB:", "3", "workers"]
    assert told["network"][3:5] == ["762", "kB"]


def test_plan_for_an_impossible_number_of_nodes_is_refused() -> None:
    for nodes in (0, 3):
        with refuses("nodes", "--workers", got=nodes):
            show_plan(Experiment(workers=2, updates=10), nodes=nodes)
    with refuses("nodes", "--engine ray", got=2):
        show_plan(Experiment(engine="local", updates=10), nodes=2)
