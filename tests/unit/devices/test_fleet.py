"""The devices and the cost of tasks on them, against numbers that were computed by hand."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

from fedraa import Experiment
from fedraa.devices.compute_speeds import make_fleet
from fedraa.devices.costs import training_time
from fedraa.devices.fleet import Fleet, Load
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_cost_model


def fleet(spec: str, clients: int = 10, seed: int = 0) -> Fleet:
    return make_fleet(spec, clients, units="relative", seed=seed)


@pytest.mark.parametrize(
    ("spec", "clients", "compute"),
    [
        ("1:0.5,3:0.5", 4, [1, 1, 3, 3]),
        # 2.5 is rounded up.
        ("1:0.5,3:0.5", 5, [1, 1, 1, 3, 3]),
        ("3:0.1,1:0.9", 10, [3] + [1] * 9),
        ("2:1", 3, [2, 2, 2]),
        ("1:0.333,2:0.333,4:0.334", 3, [1, 2, 4]),
        ("1:0,2:1", 2, [2, 2]),
    ],
)
def test_tiers_of_compute_speed_divide_the_clients_by_their_shares(
    spec: str, clients: int, compute: list[float]
) -> None:
    assert fleet(spec, clients).compute.tolist() == compute


def test_distributions_have_their_moments_and_are_seeded() -> None:
    many = 20_000
    lognormal = np.log(fleet("lognormal:0.5", many).compute)
    # The standard errors are 0.5/sqrt(20000) = 0.0035 of the mean and 0.0025 of the deviation.
    assert abs(lognormal.mean()) < 0.015
    assert abs(lognormal.std() - 0.5) < 0.011
    uniform = fleet("uniform:1:10", many).compute
    assert uniform.min() >= 1
    assert uniform.max() <= 10
    assert abs(uniform.mean() - 5.5) < 0.08  # standard error 9/sqrt(12)/sqrt(20000) = 0.018
    zipf = fleet("zipf:2", many).compute
    assert abs((zipf == 1).mean() - 6 / np.pi**2) < 0.015  # P(1) = 1/zeta(2)
    assert abs((zipf == 0.5).mean() - 6 / np.pi**2 / 4) < 0.012
    assert np.array_equal(fleet("zipf:2").compute, fleet("zipf:2").compute)
    assert not np.array_equal(fleet("lognormal:1").compute, fleet("lognormal:1", seed=1).compute)


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("1:0.5,3:0.6", "1.1"),
        ("-1:0.5,3:0.5", "-1"),
        ("0:1", "speeds above 0"),
        ("fast", "tiers"),
        ("1:x", "'x'"),
        ("nan:1", "'nan'"),
        ("lognormal", "positive number"),
        ("lognormal:1000", "0 or infinite"),
        ("uniform:3:1", "LOW not above HIGH"),
        ("zipf:1", "exponent"),
    ],
)
def test_wrong_compute_speeds_are_refused(spec: str, shown: str) -> None:
    with refuses("compute", shown, got=spec):
        fleet(spec)


@pytest.mark.parametrize("speeds", [5, None, (1, 2), {"compute": [1, 2]}])
def test_speeds_without_a_function_are_refused_with_the_function_to_write(speeds: object) -> None:
    with refuses("compute", "lambda", "tiers", got=speeds):
        make_fleet(speeds, 2, units="relative", seed=0)


def test_csv_in_physical_units_costs_seconds(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("compute,downlink,uplink,latency,memory\n1e9,1e6,5e5,0.1,4e6\n2e9,inf,inf,0,8e6\n")
    devices = make_fleet(str(path), 2, units="physical", seed=0)
    load = Load(work=3e9, down=2e6, up=1e6, memory=5e6)
    # The first device takes 0.1 + 2e6/1e6 + 3e9/1e9 + 1e6/5e5. The second has no transfers and takes 3e9/2e9.
    assert devices.cost(load).tolist() == pytest.approx([7.1, 1.5])
    assert devices.fits_memory(load).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "place", "got"),
    [
        ("compute\n1\n", "", None),
        ("speed\n1\n1\n", " columns", ["speed"]),
        ("client,compute,latency\n0,1,0\n1,1,0\n", " columns", ["client"]),
        ("compute\n1\n-2\n", " line 3 compute", -2),
        ("compute\n1\nfast\n", " line 3 compute", "fast"),
        ("compute,latency\n1,0\n1,-1\n", " line 3 latency", -1),
        ("compute\n1\ninf\n", " line 3 compute", float("inf")),
        ("compute,count\n1,2\n3,1\n", "", None),
        ("compute,count\n1,1.5\n3,1\n", " line 2 count", 1.5),
        ("compute,count\n1,2\n3,0\n", " line 3 count", 0),
        ("compute,count\n1,1e300\n3,1\n", "", None),
        ("count\n2\n", " columns", ["count"]),
        ("", "", None),
    ],
)
def test_wrong_table_of_devices_is_refused_by_row(tmp_path: Path, text: str, place: str, got: object) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(text)
    with refuses(f"compute: {path}{place}", got=got):
        fleet(str(path), 2)


def test_row_with_a_count_describes_equal_devices(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("count,compute,downlink,uplink\n2,1,10,5\n1,4,40,20\n")
    devices = make_fleet(str(path), 3, units="relative", seed=0)
    assert devices.compute.tolist() == [1, 1, 4]
    assert devices.downlink.tolist() == [10, 10, 40]
    assert devices.uplink.tolist() == [5, 5, 20]
    with refuses(f"compute: {path}", "--clients 3"):
        make_fleet(str(path), 10, units="relative", seed=0)


def test_relative_cost_is_the_share_of_the_model_over_the_compute_speed() -> None:
    # Each of 3 clients has 479 samples. A fragment with 40 of 200 neurons has 40 * 75 + 10 of 15010 parameters.
    spec = build_run(Experiment(clients=3, compute="1:0.667,3:0.333", fragments=3))
    table = make_cost_model(spec).table([part.widths for part in spec.submodels])
    shares = [(40 * 75 + 10) / 15010, (60 * 75 + 10) / 15010, (100 * 75 + 10) / 15010]
    assert table[0] == pytest.approx(shares)
    assert table[2] == pytest.approx([share / 3 for share in shares])


def test_relative_cost_follows_data_epochs_and_passes() -> None:
    # 1437 = 3 * 359 + 360: client 0 has 360 samples, and the mean is 359.25.
    def first(**flags: object) -> float:
        spec = build_run(Experiment(method="fedavg", clients=4, compute="2:1", **flags))
        sizes = spec.data.sizes
        return float(make_cost_model(spec).table([spec.submodels[0].widths])[0, 0] * 359.25 / sizes[0])

    assert first() == pytest.approx(1 / 2)
    assert first(local_epochs=10) == pytest.approx(2 / 2)
    assert first(override={"local.sam_rho": 0.05}) == pytest.approx(2 / 2)


def test_local_steps_cost_in_proportion_to_their_samples() -> None:
    # 359 samples make 11 minibatches of 32 and one of 7, so 20 steps are an epoch and 8 minibatches. A cost of 1 is
    # 5 epochs of 359.25 samples.
    spec = build_run(Experiment(method="fedavg", clients=4, compute="1:1", local_steps=20, batch_size=32))
    costs = make_cost_model(spec).table([spec.submodels[0].widths])[:, 0]
    assert costs[spec.data.sizes == 359] == pytest.approx((359 + 8 * 32) / (5 * 359.25))


def test_physical_cost_is_flops_and_bytes_of_the_submodel(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("compute,downlink,uplink,latency\n" + "1e6,1e5,2e5,0.5\n" * 3)
    spec = build_run(Experiment(method="fedavg", clients=3, compute=str(path), units="physical", hidden=(10,)))
    # 64-10-10: forward 2 * 740, weight gradients 2 * 740, input gradient of the second layer 2 * 100 per sample
    flops = (2 * 740 + 2 * 740 + 2 * 100) * 479 * 5
    size = 4 * (64 * 10 + 10 + 10 * 10 + 10)
    seconds = 0.5 + size / 1e5 + flops / 1e6 + size / 2e5
    assert make_cost_model(spec).table([spec.submodels[0].widths])[:, 0] == pytest.approx(seconds)


def test_observed_durations_change_the_planned_but_not_the_simulated_cost() -> None:
    spec = build_run(Experiment(clients=3, fragments=2))
    costs, shapes = make_cost_model(spec), [part.widths for part in spec.submodels]
    before, sent = costs.table(shapes), costs.sent(shapes[0])
    modelled = costs.cost(shapes[0], 1, sent, sent).duration
    # One slow first task has no effect on the median.
    for times in (50, 2, 2, 4, 2):
        costs.observe(shapes[0], 1, times * modelled)
    assert costs.cost(shapes[0], 1, sent, sent).duration == modelled
    assert costs.table(shapes)[1] == pytest.approx(2 * before[1])
    assert costs.table(shapes)[[0, 2]].tolist() == before[[0, 2]].tolist()


@pytest.mark.parametrize(
    ("duration", "cost", "waited", "expected"),
    [
        # A worker trained for 2 s, longer than the device needs.
        (5.0, 1.0, 3.0, 2.0),
        # A worker trained for 0.5 s, and the update was held back for the rest of the cost.
        (5.0, 1.0, 4.5, 1.0),
        # Nothing waited, and the device was faster than modelled.
        (0.5, 1.0, 0.0, 0.5),
    ],
)
def test_training_time_excludes_the_wait_for_a_worker(
    duration: float, cost: float, waited: float, expected: float
) -> None:
    assert training_time(duration, cost, waited) == expected


def test_time_that_every_worker_needs_does_not_make_devices_look_slow() -> None:
    spec = build_run(Experiment(clients=3, fragments=2))
    costs, shapes = make_cost_model(spec), [part.widths for part in spec.submodels]
    before = costs.table(shapes)
    # All clients have 479 samples. The worker of client 1 is twice as slow as the others.
    for _ in range(5):
        for client, seconds in enumerate((4.0, 8.0, 4.0)):
            costs.observe(shapes[0], client, seconds, seconds)
    assert costs.table(shapes) == pytest.approx(before * [[1.0], [2.0], [1.0]])


def test_file_of_devices_may_be_a_path(tmp_path: Path) -> None:
    file = tmp_path / "devices.csv"
    file.write_text("compute\n2\n")
    experiment = Experiment(clients=1, compute=file)
    assert experiment == Experiment(clients=1, compute=str(file))
    assert make_fleet(experiment.compute, 1, units="relative", seed=0).compute.tolist() == [2]
