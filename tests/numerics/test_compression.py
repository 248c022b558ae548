"""Compressors against formulas, published values and means over many draws, and signSGD's vote against NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy_mlp import sgd
from refusals import refuses
from tiny import CLIENTS, LR, SEED, WIDTHS, Stepped, close, minibatches, spec, start

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.client.compression import COMPRESSOR
from fedraa.client.error_feedback import ErrorFeedback, compress_with_feedback
from fedraa.rng import generator
from fedraa.vectors.delta_view import DeltaView

DELTA = torch.tensor([0.1, -3.0, 0.0, 2.0, -0.2])


def decode(text: str, values: torch.Tensor, number: int = 0) -> torch.Tensor:
    return COMPRESSOR.resolve(text).apply(values, np.random.default_rng(number))


def decode_often(text: str, values: torch.Tensor, draws: int) -> np.ndarray:
    """Return the decoded deltas [draws, k] of independent draws."""
    return np.stack([decode(text, values, number).numpy() for number in range(draws)])


def test_topk_keeps_the_largest_entries() -> None:
    assert decode("topk:0.4", DELTA).tolist() == [0, -3, 0, 2, 0]
    assert decode("topk:1", DELTA).tolist() == DELTA.tolist()


def test_8bit_is_within_half_a_level() -> None:
    delta = torch.from_numpy(np.random.default_rng(0).normal(size=1000).astype(np.float32))
    decoded = decode("8bit", delta)
    level = (delta.max() - delta.min()) / 255
    assert 0 < (decoded - delta).abs().max() <= level / 2 * 1.001
    assert len(decoded.unique()) <= 256
    constant = torch.full((3,), 0.7)
    assert decode("8bit", constant).tolist() == constant.tolist()


@pytest.mark.parametrize(("size", "grows"), [(130_000, False), (131_000, True)])
def test_8bit_errors_are_small_in_the_largest_entry_but_not_always_in_the_euclidean_norm(
    size: int, grows: bool
) -> None:
    """With the range from -1 to 1, a 0 lies halfway between two levels, and its error is 1/255."""
    delta = torch.zeros(size)
    delta[0], delta[1] = 1, -1
    error = decode("8bit", delta) - delta
    assert 0 < error.abs().max() <= delta.abs().max() / 255 * 1.001
    assert bool(error.double().norm() > delta.double().norm()) is grows


def test_qsgd_rounds_to_the_two_neighbouring_levels_with_the_right_probability() -> None:
    """||(3, -4, 0)|| is 5, so with 4 levels r = (2.4, 3.2, 0), and the variance is 0.625."""
    decoded = decode_often("qsgd:4", torch.tensor([3.0, -4.0, 0.0]), 4000)
    assert set(decoded[:, 0]) == {2.5, 3.75}
    assert set(decoded[:, 1]) == {-3.75, -5.0}
    assert set(decoded[:, 2]) == {0.0}
    assert np.mean(decoded[:, 0] == 3.75) == pytest.approx(0.4, abs=0.03)
    assert np.mean(decoded[:, 1] == -5.0) == pytest.approx(0.2, abs=0.03)
    assert decoded.var(axis=0).sum() == pytest.approx(0.625, rel=0.06)


def test_randomk_keeps_a_share_and_is_unbiased() -> None:
    values = torch.arange(1.0, 11.0)
    decoded = decode_often("randomk:0.3", values, 4000)
    assert set((decoded != 0).sum(axis=1)) == {3}
    assert decoded[0][decoded[0] != 0] == pytest.approx(values.numpy()[decoded[0] != 0] * 10 / 3)
    assert decoded.mean(axis=0) == pytest.approx(values.numpy(), rel=0.12)


def test_sign_and_scaled_sign_equal_the_published_values() -> None:
    """The published values of scaled sign: 1.2 * (1, -1, 1, -1) for (3, -1.1, 0.5, -0.2). A zero counts as +1."""
    values = torch.tensor([3.0, -1.1, 0.5, -0.2])
    assert decode("sign", values).tolist() == [1, -1, 1, -1]
    assert decode("sign", torch.zeros(2)).tolist() == [1, 1]
    assert decode("scaled-sign", values).numpy() == pytest.approx(1.2 * np.array([1, -1, 1, -1]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", 4000),
        ("topk:0.1", 525),
        ("randomk:0.1", 408),
        ("8bit", 1008),
        ("sign", 125),
        ("scaled-sign", 129),
        ("qsgd:4", 504),
    ],
)
def test_bytes_equal_the_size_of_the_packed_message(text: str, expected: int) -> None:
    """Of 1,000 entries 100 are sent: 100 indices of 10 bits and a bitmap of 1,000 bits have the same length."""
    assert COMPRESSOR.resolve(text).bytes(1000) == expected


def test_few_positions_are_sent_as_indices_and_many_as_a_bitmap() -> None:
    assert COMPRESSOR.resolve("topk:0.01").bytes(1000) == (10 * 32 + 10 * 10 + 7) // 8
    assert COMPRESSOR.resolve("topk:0.5").bytes(1000) == (500 * 32 + 1000) // 8
    assert COMPRESSOR.resolve("topk:0.001").bytes(5) == (32 + 3 + 7) // 8


@pytest.mark.parametrize("text", ["none", "topk:0.5", "randomk:0.5", "8bit", "qsgd:4", "sign", "scaled-sign"])
def test_empty_and_zero_deltas_decode_to_finite_values(text: str) -> None:
    """With some masks a client trains no coordinate, and some clients have a delta of zeros."""
    assert decode(text, torch.zeros(0)).numel() == 0
    assert torch.isfinite(decode(text, torch.zeros(3))).all()
    if text != "sign":
        assert not decode(text, torch.zeros(3)).any()


@pytest.mark.parametrize(
    "text",
    [
        "none:1",
        "topk",
        "topk:0",
        "topk:1.1",
        "topk:x",
        "8bit:2",
        "gzip",
        "topk:nan",
        "qsgd:0",
        "qsgd:1.5",
        "randomk:-1",
    ],
)
def test_bad_compressors_are_refused(text: str) -> None:
    with refuses("compress", got=text):
        COMPRESSOR.resolve(text)


def test_sign_compression_without_a_majority_vote_is_refused() -> None:
    with refuses("compress", got="sign"):
        spec("fedavg", compress="sign")


def test_a_client_compresses_with_the_random_numbers_of_its_task() -> None:
    """The decoded update of a task is the received weights plus C(delta) with the stream (seed, client, turn)."""
    runs = [Stepped(spec("fedavg", compress=text)) for text in ("none", "qsgd:2")]
    plain, compressed = ([run.train(run.server.assign(client, 0.0)) for client in run.server.begin()] for run in runs)
    received = runs[0].server.params
    for exact, update in zip(plain, compressed, strict=True):
        delta = torch.from_numpy(exact.params - received)
        decoded = COMPRESSOR.resolve("qsgd:2").apply(delta, generator(SEED, "compress", exact.client, 0)).numpy()
        assert update.params == pytest.approx(received + decoded, abs=1e-7)


def test_majority_vote_equals_the_published_result() -> None:
    """A tie gives 0: the deltas (1, -2, 0), (3, 1, 0), (-0.1, -5, 1) and (2, 4, -1) give (1, 0, 0)."""
    deltas = np.array([[1, -2, 0], [3, 1, 0], [-0.1, -5, 1], [2, 4, -1]], np.float32)
    aggregator = AGGREGATOR.resolve("majority").bind(3, 4)
    for client, delta in enumerate(deltas):
        aggregator.add(ClientDelta(client, DeltaView(slice(None), delta), 1.0, 0.1))
    votes, moved = aggregator.finish(RoundTotals(np.full(3, 4, np.int32), 0.1))
    assert votes.tolist() == [1, 0, 0]
    assert moved.all()


def test_signsgd_round_equals_numpy() -> None:
    """theta <- theta + 0.01 * sign(sum of the clients' signs), after their local SGD."""
    run = spec("signsgd", server_lr=0.01, momentum=0.0)
    theta = start(run)
    deltas = np.stack([sgd(theta, minibatches(run, n, 0), WIDTHS, lr=LR) - theta for n in range(CLIENTS)])
    # A delta of rounding errors has another sign in float32.
    certain = (np.abs(deltas) > 1e-6).all(axis=0)
    assert certain.mean() > 0.8
    stepped = Stepped(run)
    stepped.round()
    expected = theta + 0.01 * np.sign(np.where(deltas < 0, -1, 1).sum(axis=0))
    close(stepped.server.params[certain], expected[certain])


def send_often(kind: ErrorFeedback, text: str, tasks: int) -> tuple[list[list[float]], np.ndarray]:
    """Return the decoded delta of each task with the delta (3, -1.1, 0.5, -0.2), and the kept errors."""
    delta, kept, arrived = torch.tensor([3, -1.1, 0.5, -0.2], dtype=torch.float64), torch.zeros(4).double(), []
    for _ in range(tasks):
        sent, kept = compress_with_feedback(kind, delta, kept, lambda values: decode(text, values))
        arrived.append(sent.tolist())
    return arrived, kept.numpy()


def test_error_feedback_equals_the_published_values() -> None:
    sent, error = send_often("ef", "topk:0.25", 3)
    assert sent == [[3, 0, 0, 0], [3, 0, 0, 0], pytest.approx([0, -3.3, 0, 0])]
    assert error == pytest.approx([3, 0, 1.5, -0.6])
    sent, error = send_often("ef", "scaled-sign", 2)
    assert np.array(sent) == pytest.approx(np.array([[1.2, -1.2, 1.2, -1.2], [1.7, -1.7, -1.7, 1.7]]))
    assert error == pytest.approx([3.1, 0.7, 1.5, -0.9])
    sent, kept = send_often("ef21", "topk:0.25", 3)
    assert sent == [[3, 0, 0, 0], [3, -1.1, 0, 0], [3, -1.1, 0.5, 0]]
    assert kept == pytest.approx([3, -1.1, 0.5, 0])


def test_random_entries_are_not_scaled_with_error_feedback() -> None:
    """An error of (d / k - 1) times the delta would grow from task to task."""
    compressor = COMPRESSOR.resolve("randomk:0.1").for_feedback()
    assert compressor is not None
    rng, delta, error = np.random.default_rng(0), torch.ones(100), torch.zeros(100)
    largest = 0.0
    for _ in range(300):
        _, error = compress_with_feedback("ef", delta, error, lambda values: compressor.apply(values, rng))
        largest = max(largest, float(error.abs().max()))
    # Every entry waits for a tenth of the tasks on average.
    assert 10 < largest < 100


@pytest.mark.parametrize("method", ["fedavg", "ra-fed", "fed-raa"])
@pytest.mark.parametrize("kind", ["ef", "ef21"])
def test_error_feedback_of_runs_equals_numpy(method: str, kind: ErrorFeedback) -> None:
    """Each client has a value per coordinate of the full model. A task changes only the values that it trains."""
    fields: dict[str, object] = {"momentum": 0.0}
    if method == "fed-raa":
        fields |= {"prox_mu": 0.0, "ratios": (0.4, 0.6), "scheduler": "random"}
    exact, run = spec(method, **fields), spec(method, compress="topk:0.2", error_feedback=kind, **fields)
    stepped, plain = Stepped(run), Stepped(exact)
    kept = np.zeros((CLIENTS, run.traced.size))
    waiting, tasks = list(stepped.server.begin()), 0
    while tasks < 9:
        started = [stepped.server.assign(client, 0.0) for client in waiting]
        waiting = []
        for task in started:
            tasks += 1
            update = stepped.train(task)
            extras = {name: value for name, value in task.extras.items() if "error_feedback" not in name}
            delta = plain.train(replace(task, extras=extras)).params.astype(float) - task.params
            mask = np.ones(task.size, bool) if task.mask is None else task.mask
            places = np.arange(run.traced.size)[stepped.server.task_table.in_flight[task.id].assignment.where]
            memory = kept[task.client, places]
            values = delta[mask] + memory if kind == "ef" else delta[mask] - memory
            sent = np.zeros_like(values)
            largest = np.argsort(-np.abs(values), kind="stable")[: round(0.2 * len(values))]
            sent[largest] = values[largest]
            counts = sent if kind == "ef" else memory + sent
            new = values - sent if kind == "ef" else counts
            np.testing.assert_allclose((update.params - task.params)[mask], counts, atol=3e-6)
            kept[task.client, places] = new
            waiting += stepped.server.commit(update, 1.0)
    states = stepped.server.task_table.client_states._rows["kept_error_feedback"]
    for client in range(CLIENTS):
        np.testing.assert_allclose(states.peek_row(client), kept[client], atol=3e-6)


@pytest.mark.parametrize("text", ["qsgd:4", "sign"])
def test_error_feedback_needs_a_compressor_whose_error_is_small(text: str) -> None:
    with refuses("compress", got=text):
        spec("fedavg", compress=text, error_feedback="ef")
