"""Runs whose RoundState or aggregator sets the traffic of a task can be replayed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from needed_models import needed_model
from refusals import refuses

import fedraa as fl
from fedraa.aggregation.coverage_mean import CoverageMean
from fedraa.client import LocalTraining
from fedraa.composition.registry import find_method
from fedraa.errors import Inconsistent
from fedraa.messages import ExtraBuffers
from fedraa.server.round_state import RoundState
from fedraa.server.round_update import Mean

# The parameters of an MLP with 8 hidden units for digits.
SIZE = 64 * 8 + 8 + 8 * 10 + 10
SMALL: dict[str, Any] = {"clients": 3, "hidden": (8,), "local_steps": 1, "rounds": 2, "quiet": True, "engine": "local"}


class SendsTwo(RoundState):
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=2)

    def send(self, client: int, assignment: Any) -> dict[str, Any]:
        return {"a": assignment.submodel.take(self.zeros), "b": assignment.submodel.take(self.zeros)}

    def start(self, run: Any) -> None:
        self.zeros = np.zeros(run.size, np.float32)


@pytest.mark.parametrize("options", [{}, {"aggregator": "median"}])
def test_replay_accepts_the_traffic_of_a_custom_round_state(tmp_path: Path, options: dict[str, Any]) -> None:
    method = fl.Method(name="own", update=Mean(auxiliary=SendsTwo()))
    history = fl.run(method=method, out=tmp_path / "run", **SMALL | options)
    # In two rounds, each of the three clients receives the model and two buffers of float32.
    assert history.summary["bytes_down"] == 2 * 3 * 3 * 4 * SIZE
    assert "consistent" in fl.replay(tmp_path / "run")


class SendsTwice(fl.Compressor):
    def apply(self, delta: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        return delta

    def bytes(self, coordinates: int) -> int:
        return 8 * coordinates


def test_replay_of_a_custom_compressor_that_makes_fragments_infeasible(tmp_path: Path) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text("compute,uplink\n1,0.2\n2,0.3\n1,0.1\n")
    options = {"compute": str(devices), "compress": SendsTwice(), "rounds": None, "updates": 6, "delay_bound": 6.0}
    fl.run(method="fed-raa", out=tmp_path / "run", **SMALL | options)
    lines = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    feasible = [line["feasible_fragments"] for line in lines if "feasible_fragments" in line]
    assert any(len(fragments) < 4 for fragments in feasible)
    assert "consistent" in fl.replay(tmp_path / "run")


class SendsMore(SendsTwice):
    def bytes(self, coordinates: int) -> int:
        return 80 * coordinates


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedavg", "participation": "routing:2"},
        {"method": "fedavg", "participation": "tifl(count=2, tiers=3, rounds=6, interval=1)"},
        {"method": "fedavg", "participation": "oort:3", "over_selection": 1.5},
        {"method": "fedbuff", "next_client": "oort", "concurrency": 3, "rounds": None, "updates": 4},
        {"method": "fedbuff", "next_client": "routing", "concurrency": 3, "rounds": None, "updates": 4},
        {"method": "generalized-asyncsgd", "rounds": None, "updates": 20},
        {"method": "fedasync", "override": {"update.participation_correction": 1.0}, "rounds": None, "updates": 8},
    ],
)
def test_replay_accepts_choices_that_depend_on_the_bytes_of_a_custom_compressor(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Slow devices have fast links. Only with the bytes of the compressor are they the first to finish."""
    devices = tmp_path / "devices.csv"
    devices.write_text("compute,uplink\n0.05,200\n0.1,100\n0.2,50\n0.3,20\n0.5,10\n1,5\n")
    fields = SMALL | {"rounds": 8, "clients": 6, "compute": str(devices), "compress": SendsMore()}
    fl.run(out=tmp_path / "run", **fields | options)
    assert "consistent" in fl.replay(tmp_path / "run")


def test_replay_names_the_line_with_a_client_that_the_run_does_not_have(tmp_path: Path) -> None:
    options = {"method": "fedavg", "participation": "oort:2", "compress": SendsMore(), "clients": 6}
    fl.run(out=tmp_path / "run", **SMALL | options)
    log = tmp_path / "run" / "events.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    number = next(number for number, line in enumerate(lines) if line["kind"] == "dispatch")
    lines[number]["client"] = 6
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(Inconsistent, match=f"line {number + 1} .*client: got 6; expected 0 to 5"):
        fl.replay(tmp_path / "run")


class Twice(fl.LocalAlgorithm):
    """Local training that passes over the data of a client once more."""

    @property
    def epochs(self) -> int:
        return 10


def test_replay_accepts_participation_corrections_by_the_costs_of_a_custom_algorithm(tmp_path: Path) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text("compute,uplink\n1,1\n2,0.001\n3,1\n")
    method = replace(find_method("fedasync"), name="own", local=LocalTraining(algorithm=Twice()))
    options = {
        "compute": str(devices),
        "override": {"update.participation_correction": 1.0},
        "rounds": None,
        "updates": 8,
    }
    fl.run(method=method, out=tmp_path / "run", **SMALL | options)
    assert "consistent" in fl.replay(tmp_path / "run")


class SendsTen(CoverageMean):
    def traffic_sizes(self, client: int, assignment: Any) -> tuple[int, int]:
        return 10, 5


def test_replay_accepts_the_traffic_of_a_custom_aggregator(tmp_path: Path) -> None:
    history = fl.run(method="fedavg", aggregator=SendsTen(), out=tmp_path / "run", **SMALL)
    assert history.summary["bytes_down"] == 2 * 3 * 4 * 10
    assert history.summary["bytes_up"] == 2 * 3 * 4 * 5
    assert "consistent" in fl.replay(tmp_path / "run")


def test_replay_accepts_flora_with_full_submodels(tmp_path: Path) -> None:
    options = SMALL | needed_model("flora") | {"hidden": (200,)}
    fl.run(method="flora", submodel="full", out=tmp_path / "run", **options)
    assert "consistent" in fl.replay(tmp_path / "run")


@pytest.mark.parametrize("sizes", ["ab", (1, -2), (1, SIZE + 1), (1,), 3])
def test_wrong_traffic_sizes_are_refused(tmp_path: Path, sizes: object) -> None:
    own = type("Odd", (CoverageMean,), {"traffic_sizes": lambda self, client, assignment: sizes})()
    with refuses("aggregator", "Odd.traffic_sizes", got=sizes):
        fl.run(method="fedavg", aggregator=own, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()
