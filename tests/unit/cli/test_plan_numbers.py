"""Numbers in a plan: classes of devices, the server's memory, the concentration of labels, clients in time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedraa import Experiment, run
from fedraa.cli.main import main
from fedraa.cli.plan import device_classes, server_bytes, show_plan
from fedraa.cli.plan_data import label_concentration
from fedraa.devices.fleet import Fleet
from fedraa.engine.build import build_run


def fleet(compute: list[float]) -> Fleet:
    many = len(compute)
    infinite = np.full(many, np.inf)
    return Fleet(np.array(compute), infinite, infinite, np.zeros(many), infinite)


def test_equal_devices_are_one_class_and_many_classes_become_groups() -> None:
    few = fleet([1, 3, 1, 3, 3])
    assert [group.tolist() for group in device_classes(few, np.ones((5, 1)))] == [[0, 2], [1, 3, 4]]
    many = fleet([float(n) for n in range(1, 1001)])
    groups = device_classes(many, 1 / many.compute[:, None])
    assert [len(group) for group in groups] == [100] * 10
    assert set(groups[0].tolist()) == set(range(900, 1000))


def test_server_memory_is_the_model_and_two_buffers_per_client() -> None:
    spec = build_run(Experiment(clients=6, fragments=2))
    assert server_bytes(spec) == 4 * 15010 + 2 * 6 * 4 * 9010


def test_label_concentration_is_the_sum_of_squared_shares() -> None:
    """1/2, 1/2, 0 give 1/2; one label gives 1; 1/4, 1/4, 1/2 give 3/8; no samples give 0."""
    counts = np.array([[2, 2, 0], [0, 0, 7], [1, 1, 2], [0, 0, 0]])
    assert label_concentration(counts).tolist() == [0.5, 1.0, 0.375, 0.0]


@pytest.mark.parametrize(
    ("flags", "count"), [("--method fedavg --rounds 1", "1 round of"), ("--updates 1", "1 update in")]
)
def test_plan_of_one_step_has_the_singular(flags: str, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *flags.split()]) == 0
    assert f"expected       {count} " in capsys.readouterr().out


def test_plan_with_a_deadline_counts_the_clients_of_the_first_round_that_has_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With this seed, the run has no client before round 3, and then one."""
    fields: dict[str, Any] = {"method": "fedavg", "participation": "poisson:0.1", "clients": 5, "deadline": 5.0}
    fields |= {"rounds": 3, "seed": 1, "hidden": (8,), "engine": "local", "quiet": True}
    show_plan(Experiment(**fields))
    assert "in round 3: 1 of 1" in capsys.readouterr().out
    history = run(Experiment(**fields, out=tmp_path / "run"))
    assert [line["step"] for line in history.lines() if line["kind"] == "dispatch"] == [2]
