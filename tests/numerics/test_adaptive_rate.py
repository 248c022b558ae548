"""The adaptive learning rate: the cosines of tasks against NumPy, the server's factor by hand, and whole runs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from first_task import first_task
from numpy_mlp import sgd
from refusals import refuses
from tiny import LR, SEED, WIDTHS, minibatches, spec, start
from torch import nn

import fedraa as fl
from fedraa.client.halfway_cosine import HalfwayCosine
from fedraa.client.trainer import Trainer
from fedraa.server.local_rates import RECENT, RISE, AdaptiveFactor, LocalRates, RunningMedian

RUN = spec("fedavg", lr_schedule="adaptive", momentum=0.0)
DIGITS: dict[str, Any] = {"dataset": "digits", "hidden": (32,), "clients": 6, "engine": "local", "quiet": True}


@pytest.mark.parametrize("mask", [None, np.random.default_rng(0).random(len(RUN.params)) < 0.6])
def test_cosine_compares_the_two_halves_of_a_tasks_path(mask: np.ndarray | None) -> None:
    task = first_task(widths=RUN.traced.widths(RUN.traced.full()), buffer=RUN.params, lr=LR, mask=mask)
    update = Trainer(RUN.traced, RUN.method.local, seed=SEED).train(task, *RUN.data.client(0))
    batches = list(minibatches(RUN, 0, 0))
    received = start(RUN) if mask is None else start(RUN) * mask
    options: dict[str, Any] = {"lr": LR} if mask is None else {"lr": LR, "mask": mask}
    halfway, last = (sgd(received, batches[:steps], WIDTHS, **options) for steps in (len(batches) // 2, len(batches)))
    first, second = halfway - received, last - halfway
    assert update.cosine == pytest.approx(first @ second / np.linalg.norm(first) / np.linalg.norm(second), abs=1e-5)


def cosine_of_path(
    received: list[float], halfway: list[float], last: list[float], module: nn.Module, embeddings: Sequence[slice] = ()
) -> float | None:
    """Return the cosine of a task of two steps, with the target -0.05, from the weights before and after each step."""
    cosine = HalfwayCosine([2], -0.05, module)
    cosine.record(1, torch.tensor(halfway))
    return cosine.compute(torch.tensor(received), torch.tensor(last), embeddings=embeddings)


def test_the_cosine_is_limited_by_the_relative_change_of_weight_matrices() -> None:
    line = nn.Linear(2, 1, bias=False)
    # The weights have the norm 5 and change by 10, in a straight line. The limit is the logarithm of 5 / 10.
    assert cosine_of_path([3.0, 4.0], [3.0, 9.0], [3.0, 14.0], line) == pytest.approx(-math.log(2))
    # A change by a fifth does not change the cosine, nor does any change of weights of 0.
    assert cosine_of_path([3.0, 4.0], [3.0, 4.5], [3.0, 5.0], line) == pytest.approx(1.0)
    assert cosine_of_path([0.0, 0.0], [3.0, 4.0], [6.0, 8.0], line) == pytest.approx(1.0)
    # Weights that turn back keep a negative cosine after a long step, and the target after a short one.
    assert cosine_of_path([3.0, 4.0], [3.0, 6.0], [3.0, 5.0], line) == pytest.approx(-1.0)
    assert cosine_of_path([3.0, 4.0], [3.0, 4.4], [3.0, 4.2], line) == pytest.approx(-0.05)
    assert cosine_of_path([3.0, 4.0], [3.0, 4.5], [3.0, 4.3], line) == pytest.approx(-1.0)
    # Biases do not count.
    module = nn.Linear(1, 1)
    assert cosine_of_path([5.0, 1.0], [6.0, 2.0], [7.0, 9.0], module) == pytest.approx(8 / math.sqrt(2 * 50))


@pytest.mark.parametrize("last", [1e20, math.inf, math.nan])
def test_weights_that_diverge_have_no_cosine(last: float) -> None:
    line = nn.Linear(2, 1, bias=False)
    assert cosine_of_path([3.0, 4.0], [3.0, 9.0], [3.0, last], line) is None


def test_an_embedding_does_not_count_in_the_cosine() -> None:
    module = nn.Sequential(nn.Embedding(1, 2), nn.Linear(2, 1, bias=False))
    received, halfway, last = [1.0, 1.0, 3.0, 4.0], [9.0, 1.0, 3.0, 4.5], [1.0, 1.0, 3.0, 5.0]
    assert cosine_of_path(received, halfway, last, module, [slice(0, 2)]) == pytest.approx(1.0)
    whole = cosine_of_path(received, halfway, last, module)
    assert whole is not None
    assert whole < 0


def test_a_parameter_that_is_added_to_activations_does_not_limit_the_cosine() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(1, 1, 2))
            self.line = nn.Linear(2, 1, bias=False)

    # The positions double, and the weights of the layer turn back after a change by less than a twentieth.
    assert cosine_of_path([1.0, 0.0, 3.0, 4.0], [2.0, 0.0, 3.0, 4.4], [2.0, 0.0, 3.0, 4.2], Positions()) == -0.05


def test_a_convolution_with_one_output_channel_limits_the_cosine() -> None:
    convolution = nn.Conv1d(1, 1, 2, bias=False)
    assert convolution.weight.shape == (1, 1, 2)
    # The weights have the norm 5 and change by 10, in a straight line.
    assert cosine_of_path([3.0, 4.0], [3.0, 9.0], [3.0, 14.0], convolution) == pytest.approx(-math.log(2))


def test_cosine_is_none_after_a_single_step_or_without_movement() -> None:
    module = nn.Linear(3, 1, bias=False)
    single = HalfwayCosine([1], -0.05, module)
    still = HalfwayCosine([4], -0.05, module)
    weights = torch.ones(3)
    for steps in range(1, 5):
        single.record(steps, weights)
        still.record(steps, weights)
    assert single.compute(weights, weights) is None
    assert still.compute(weights, 2 * weights) is None


def test_the_factor_follows_the_median_cosine() -> None:
    factor = AdaptiveFactor(0.1, 3, 6)
    expected = 0.0
    cosines = [0.5, 0.3, -1.0, 0.2, 0.9]
    for number, cosine in enumerate(cosines):
        factor.receive(number, cosine, 1.0)
        expected += (float(np.median(cosines[max(0, number - 2) : number + 1])) - 0.1) / 3
        assert math.log(factor.value) == pytest.approx(expected)
    for missing in (None, math.nan):
        factor.receive(0, missing, 1.0)
    assert math.log(factor.value) == pytest.approx(expected)


def test_the_factor_falls_if_most_losses_have_risen() -> None:
    factor = AdaptiveFactor(0.0, 2, 2)
    logs = [0.0]

    def receive(client: int, loss: float) -> None:
        factor.receive(client, 0.5, loss)
        logs.append(math.log(factor.value))

    for client, loss in ((0, 1.0), (1, 1.0), (0, 0.2), (1, 0.2)):
        receive(client, loss)
    # After the fourth update the losses are lowest. The client trained with the factor that the third update had set.
    best = logs[3]
    assert np.diff(logs) == pytest.approx([0.25] * 4)
    limit = 0.2 + RISE * 1.0
    receive(0, limit + 0.01)
    assert logs[-1] == pytest.approx(logs[-2] + 0.25)
    receive(1, limit + 0.01)
    assert logs[-1] == pytest.approx(best - math.log(2))
    # After a fall, the search for the lowest losses starts again, and the rate grows more slowly.
    receive(0, 2.0)
    receive(1, 2.0)
    assert np.diff(logs[-3:]) == pytest.approx([0.1 / 2, 0.1 / 2])
    # After the second fall it grows at half of this speed.
    receive(0, 2.2)
    receive(1, 2.2)
    assert logs[-1] == pytest.approx(logs[-2] - math.log(2))
    receive(0, 2.0)
    assert logs[-1] == pytest.approx(logs[-2] + 0.05 / 2)
    # A new lowest median of the losses, and only the last fall counts.
    receive(0, 0.1)
    receive(1, 0.1)
    assert np.diff(logs[-3:]) == pytest.approx([0.05 / 2, 0.1 / 2])


def test_factor_does_not_fall_if_the_losses_of_only_one_client_rise() -> None:
    factor = AdaptiveFactor(0.0, 3, 3)
    for client in range(3):
        factor.receive(client, 0.3, 1.0)
    # Client 0 sends all following updates. Of the two other clients, client 2 counts as recent for longer.
    before = math.log(factor.value)
    for number in range(1, RECENT * 3):
        factor.receive(0, 0.3, 2.0)
        assert math.log(factor.value) == pytest.approx(before + number * 0.3 / 3)
    highest = factor.value
    factor.receive(0, 0.3, 2.0)
    assert factor.value < highest / 2


def test_falls_end_at_a_quarter_of_the_factor_with_the_lowest_losses() -> None:
    factor = AdaptiveFactor(0.0, 1, 1)
    # With the cosine 0 the factor changes only by falls. Losses were lowest at the factor 1.
    values = []
    for loss in (1.0, 1.2, 1.2, 1.4, 1.4, 1.6):
        factor.receive(0, 0.0, loss)
        values.append(factor.value)
    assert values == pytest.approx([1, 0.5, 0.5, 0.25, 0.25, 0.25])


def test_falls_end_at_a_sixteenth_of_the_highest_factor_with_the_lowest_losses() -> None:
    factor = AdaptiveFactor(0.0, 1, 1)
    after_falls = []
    # With the cosine 0 the factor changes only by falls. A loss lower than ever before comes before each fall.
    for lowest in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5):
        factor.receive(0, 0.0, lowest)
        factor.receive(0, 0.0, lowest + 2 * RISE)
        after_falls.append(factor.value)
    assert after_falls == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16, 1 / 16])


def test_the_factor_is_at_most_8_until_the_losses_have_fallen_by_a_tenth() -> None:
    factor = AdaptiveFactor(0.0, 3, 3)

    def receive(losses: Sequence[float], times: int) -> float:
        for client in list(range(3)) * times:
            factor.receive(client, 1.0, losses[client])
        return factor.value

    # The first losses of the clients are 1, 2 and 4. Their median relative loss stays above 0.9.
    assert receive([1.0, 2.0, 4.0], 10) == pytest.approx(8)
    assert receive([0.91, 1.0, 3.7], 10) == pytest.approx(8)
    # It is 0.89 after the update of client 0, and the factor rises by exp(1 / 3) with each update.
    assert receive([0.89, 1.0, 3.7], 1) == pytest.approx(8 * math.e)
    # The limit stays off if the losses rise to 0.95 again.
    assert receive([0.95, 1.9, 3.8], 1) == pytest.approx(8 * math.e**2)


def test_the_factor_is_bounded() -> None:
    factor = AdaptiveFactor(0.0, 1, 1)
    for loss in [1.0, *[0.5] * 100]:
        factor.receive(0, 1.0, loss)
    assert factor.value == pytest.approx(1e4)
    factor = AdaptiveFactor(0.0, 1, 1)
    for _ in range(100):
        factor.receive(0, -1.0, 1.0)
    assert factor.value == pytest.approx(1e-4)


def test_rates_multiply_the_base_rate_and_are_restored() -> None:
    rates = LocalRates("adaptive:0.2", lambda widths: 0.01 * widths[0], 1, 2)
    update = Trainer(RUN.traced, RUN.method.local, seed=SEED).train(
        first_task(widths=RUN.traced.widths(RUN.traced.full()), buffer=RUN.params, lr=LR),
        *RUN.data.client(0),
    )
    assert update.cosine is not None
    rates.receive(update)
    assert rates.rate(3.0, (5,)) == pytest.approx(0.05 * math.exp(update.cosine - 0.2))
    restored = LocalRates("adaptive:0.2", lambda widths: 0.01 * widths[0], 1, 2)
    restored.restore(rates.state())
    assert restored.rate(3.0, (5,)) == rates.rate(3.0, (5,))


@pytest.mark.parametrize("method", ["fed-quilt", "fedavg"])
def test_a_resumed_run_has_the_same_rates(tmp_path: Path, method: str) -> None:
    steps = "updates" if method == "fed-quilt" else "rounds"
    settings: dict[str, Any] = {"method": method, "lr_schedule": "adaptive", "local_steps": "auto"}
    whole = fl.run(**DIGITS | settings, out=tmp_path / "whole", **{steps: 12})
    fl.run(**DIGITS | settings, out=tmp_path / "part", **{steps: 5})
    resumed = fl.resume(tmp_path / "part", **{steps: 12})
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    rates = whole.events.query("kind == 'dispatch'").lr
    assert rates.nunique() > 3
    assert rates.tolist() == resumed.events.query("kind == 'dispatch'").lr.tolist()


def test_the_rate_also_adapts_if_each_client_has_a_single_minibatch(tmp_path: Path) -> None:
    """60 clients have 23 or 24 samples each. A minibatch has 32, so a pass is one step."""
    history = fl.run(
        **DIGITS | {"clients": 60, "batch_size": 32, "local_steps": "auto"},
        method="fed-quilt",
        updates=300,
        out=tmp_path / "run",
    )
    assert history.events.query("kind == 'dispatch'").lr.nunique() > 3


@pytest.mark.slow
def test_the_rate_does_not_depend_on_its_start(tmp_path: Path) -> None:
    last = []
    for start_rate in (0.005, 0.05, 0.5):
        history = fl.run(
            **DIGITS | {"local_steps": "auto"},
            method="fed-quilt",
            lr=start_rate,
            lr_schedule="adaptive",
            updates=600,
            out=tmp_path / str(start_rate),
        )
        last.append(history.events.query("kind == 'dispatch'").lr.iloc[-100:].median())
    assert max(last) < 3 * min(last)


def test_explicit_lr_has_a_constant_schedule() -> None:
    assert spec("fed-quilt", lr=0.3).method.local.lr_schedule == "constant"
    assert fl.Experiment(method="fed-quilt").lr is None


def test_settings_in_which_the_rate_cannot_adapt_are_refused(tmp_path: Path) -> None:
    with refuses("lr_schedule"):
        fl.run(**DIGITS, method="fedavg", lr_schedule="adaptive", local_steps=1, rounds=1, out=tmp_path / "a")
    with refuses("lr_schedule"):
        fl.run(
            **DIGITS, method="fed-raa", lr_schedule="adaptive", privacy="local(noise=1)", updates=1, out=tmp_path / "b"
        )
    for wrong in ("adaptive:2", "adaptive:x", "adaptive:", "adaptive@local"):
        with refuses("lr_schedule", got=wrong):
            fl.run(**DIGITS, method="fedavg", lr_schedule=wrong, rounds=1, out=tmp_path / "c")


def test_the_running_median_is_the_median_of_the_last_values() -> None:
    values = np.random.default_rng(0).integers(0, 4, size=60) / 2
    running = RunningMedian(5)
    for number, value in enumerate(values):
        running.add(float(value))
        assert running.value == float(np.median(values[max(0, number - 4) : number + 1]))
        restored = RunningMedian(5)
        restored.restore(running.state())
        assert (restored.value, restored.is_full) == (running.value, number >= 4)


def test_only_recent_clients_count_for_a_fall_of_the_factor() -> None:
    """The sums that the factor keeps are equal to sums over all records, which the test computes again."""
    rng = np.random.default_rng(1)
    at_work, clients = 4, 30
    factor = AdaptiveFactor(0.0, at_work, clients)
    lowest: dict[int, float] = {}
    first: dict[int, float] = {}
    updates: list[tuple[int, bool]] = []
    for number in range(1, 300):
        client, loss = int(rng.integers(clients) ** 2 / clients), float(rng.uniform(1, 1.4))
        first.setdefault(client, loss)
        lowest[client] = min(loss, lowest.get(client, loss))
        updates.append((client, loss > lowest[client] + RISE * first[client]))
        # Cosines of 0 keep the factor at 1 until it falls.
        factor.receive(client, 0.0, loss)
        last = {other: (at, risen) for at, (other, risen) in enumerate(updates, 1)}
        recent = [risen for at, risen in last.values() if at > number - RECENT * at_work]
        falls = sum(risen for _, risen in updates[-at_work:]) > at_work / 2 and sum(recent) > len(recent) / 2
        assert (factor.value < 1) == falls
        if falls:
            return
    pytest.fail("the factor never fell, so nothing was compared")
