"""Validation data: the same share of each client's training samples in every process, from arrays and from readers."""

import numpy as np
from refusals import refuses

from fedraa import Experiment, FederatedDataset
from fedraa.data import Dataset, Federated
from fedraa.data import divide_dataset as deal_data
from fedraa.engine.build import build_run
from fedraa.engine.run_data import make_dealing


def dataset() -> Dataset:
    """Return a dataset in which the value of a sample is its row number."""
    x = np.arange(100, dtype=np.float32)[:, None]
    return Dataset("n", x[:90], np.arange(90) % 3, x[90:], np.arange(10) % 3, 3)


def deal(experiment: Experiment, data: Dataset | FederatedDataset) -> Federated:
    return deal_data(data, make_dealing(experiment))


def numbers(data: object, client: int) -> set[float]:
    return set(data.client(client)[0][:, 0].tolist())  # type: ignore[attr-defined]


def test_validation_holds_back_a_share_of_each_client_and_trains_on_the_rest() -> None:
    whole = deal(Experiment(standardise=False, clients=4), dataset())
    data = deal(Experiment(standardise=False, clients=4, validation=0.25), dataset())
    assert whole.sizes.tolist() == [22, 23, 22, 23]
    # 6 samples are held back: 22 / 4 = 5.5 is rounded to the even 6, and 23 / 4 to 6.
    assert data.sizes.tolist() == [16, 17, 16, 17]
    for client in range(4):
        x, y = data.test_of(client)
        held = set(x[:, 0].tolist())
        assert held | numbers(data, client) == numbers(whole, client)
        assert not held & numbers(data, client)
        assert (y == x[:, 0].astype(int) % 3).all()
        x, y = data.client(client)
        assert (y == x[:, 0].astype(int) % 3).all()
    # No test sample is used.
    assert data.dataset.x_test.max() < 90
    assert len(data.dataset.y_test) == 24
    assert data.labels is not None
    assert (data.labels == data.dataset.y_train).all()


def test_validation_samples_are_drawn_from_the_seed() -> None:
    held = [
        deal(Experiment(standardise=False, clients=4, validation=0.2, seed=seed), dataset()).dataset.x_test
        for seed in (0, 0, 1)
    ]
    assert (held[0] == held[1]).all()
    assert not np.array_equal(held[0], held[2])


def test_validation_leaves_every_client_at_least_one_training_sample() -> None:
    data = deal(Experiment(clients=60, validation=0.9), dataset())
    assert data.sizes.min() == 1
    # Thirty clients have two samples each.
    assert data.dataset.x_test.shape == (30, 1)
    with refuses("validation", got=0.5):
        deal(Experiment(clients=90, validation=0.5), dataset())


def test_validation_also_holds_back_samples_that_clients_generate() -> None:
    arrays = dataset()

    def made(client: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(20 * client, 20 * client + 20)
        return arrays.x_train[rows], arrays.y_train[rows]

    source = FederatedDataset("made", made, (arrays.x_test, arrays.y_test), sizes=20, classes=3)
    data = deal(Experiment(standardise=False, clients=4, validation=0.25), source)
    for client in range(4):
        held = set(data.test_of(client)[0][:, 0].tolist())
        assert len(held) == 5
        assert held | numbers(data, client) == set(map(float, range(20 * client, 20 * client + 20)))
        assert data.sizes[client] == len(data.client(client)[1]) == 15


def test_run_is_evaluated_on_the_validation_samples() -> None:
    spec = build_run(Experiment(clients=4, validation=0.5, hidden=(20,)), dataset=dataset())
    assert len(spec.data.dataset.y_test) == sum(round(n / 2) for n in (22, 23, 22, 23))
