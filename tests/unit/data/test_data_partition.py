import numpy as np
import pytest
from calls import count_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from fedraa.data import Dataset, divide_samples, make_partitioner
from fedraa.data.federated import federate_dataset
from fedraa.data.partition.partitioner import Partition, Shards


def labels(per_class, classes=10):
    return np.repeat(np.arange(classes), per_class)


def split(y_train, y_test, clients, scheme, *, dirichlet=0.5, seed=0):
    partitioner = make_partitioner(scheme, dirichlet=dirichlet)
    return divide_samples(partitioner, y_train, y_test, clients, seed=seed)


def counts(shards, y, classes=10):
    """Return the number of samples of each class of each client, [clients, classes]."""
    runs = [shards.order[a:b] for a, b in zip(shards.offsets, shards.offsets[1:], strict=False)]
    return np.array([np.bincount(y[run], minlength=classes) for run in runs])


@settings(max_examples=40)
@given(
    scheme=st.sampled_from(["iid", "dirichlet", "labels"]),
    clients=st.integers(5, 30),
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(40, 90), min_size=10, max_size=10),
)
def test_every_sample_has_exactly_one_client_and_every_client_a_sample(scheme, clients, seed, sizes):
    y_train, y_test = np.repeat(np.arange(10), sizes), labels(7)
    dealt = split(y_train, y_test, clients, scheme, dirichlet=1.0, seed=seed)
    for shards, y in ((dealt.train, y_train), (dealt.test, y_test)):
        assert sorted(shards.order) == list(range(len(y)))
        assert len(shards.offsets) == clients + 1
        assert shards.offsets[0] == 0
        assert shards.offsets[-1] == len(y)
        assert shards.order.dtype == shards.offsets.dtype == np.int64
    assert np.diff(dealt.train.offsets).min() >= 1


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "labels"])
def test_partition_depends_only_on_the_seed(scheme):
    y = labels(50)
    first, same, other = (split(y, y, 10, scheme, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.train.order, same.train.order)
    assert np.array_equal(first.test.order, same.test.order)
    assert not np.array_equal(first.train.order, other.train.order)


def test_iid_shards_have_equal_sizes_and_balanced_classes():
    y = labels(1003)
    dealt = split(y, labels(101), 10, "iid")
    assert set(np.diff(dealt.train.offsets)) == {1003}
    assert set(np.diff(dealt.test.offsets)) == {101}
    # Of 1003 samples drawn without order a client holds 100.3 of each class, with a deviation of 9.0.
    assert abs(counts(dealt.train, y) - 100.3).max() < 5 * 9.0


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_dirichlet_shares_have_the_variance_of_the_distribution(alpha):
    y, clients = labels(2000), 20
    shares = np.concatenate(
        [counts(split(y, y, clients, "dirichlet", dirichlet=alpha, seed=s).train, y) / 2000 for s in range(20)]
    )
    assert shares.mean() == pytest.approx(1 / clients)
    # Var of one share of Dir(a, ..., a) over n: (1/n)(1 - 1/n) / (n a + 1); 4,000 shares estimate it.
    expected = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("scheme", ["dirichlet", "labels"])
def test_a_test_shard_has_the_class_proportions_of_its_training_shard(scheme):
    y_train, y_test = labels(600), labels(100)
    dealt = split(y_train, y_test, 10, scheme, dirichlet=0.3)
    train, test = counts(dealt.train, y_train), counts(dealt.test, y_test)
    assert abs(test - train / 6).max() < 1
    assert not test[train == 0].any()


@pytest.mark.parametrize(("clients", "per_client"), [(10, 2), (7, 3), (100, 5), (13, 10), (10, 1)])
def test_labels_partition_limits_labels_per_client_and_divides_each_evenly(clients, per_client):
    y = labels(400)
    held = counts(split(y, y, clients, f"labels(per_client={per_client})").train, y)
    assert ((held > 0).sum(axis=1) == per_client).all()
    holders = (held > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    # The owners of a class divide its 400 samples evenly.
    for label, column in enumerate(held.T):
        present = column[column > 0]
        assert present.max() - present.min() <= 1, label


def test_rounding_does_not_favour_the_same_clients_in_every_class():
    # Each of 10 clients gets 14 or 15 samples of each of 10 classes. If all classes were rounded in the same way, a
    # client would have 140 or 150.
    y = labels(144)
    for seed in range(10):
        sizes = np.diff(split(y, y, 10, "labels(per_client=10)", seed=seed).train.offsets)
        assert np.ptp(sizes) < 10


def test_partition_that_leaves_a_client_without_samples_is_refused():
    with refuses("clients", "30", got=31):
        split(labels(3), labels(3), 31, "iid")
    with refuses("partition", "larger dirichlet"):
        split(labels(10), labels(1), 90, "dirichlet", dirichlet=0.01)
    # Four of the eight clients hold only class 0, which has two samples.
    with refuses("partition", "labels(per_client=5)"):
        split(np.repeat([0, 1], [2, 100]), np.array([0, 1]), 8, "labels(per_client=1)")


@pytest.mark.parametrize(
    ("change", "field", "names"),
    [
        ({"clients": 0}, "clients", ["0"]),
        ({"scheme": "sorted"}, "partition", ["iid", "dirichlet", "labels", "shards"]),
        ({"scheme": "labels(per_client=11)"}, "partition.per_client", ["10"]),
        ({"scheme": "labels(per_client=1)", "clients": 4}, "partition.per_client", ["3"]),
    ],
)
def test_bad_settings_are_refused(change, field, names):
    settings = {"clients": 5, "scheme": "iid", "dirichlet": 0.5, "seed": 0} | change
    with refuses(field, *names):
        split(labels(20), labels(5), settings.pop("clients"), settings.pop("scheme"), **settings)


@pytest.mark.parametrize("alpha", [0.0, float("nan")])
def test_concentration_that_is_not_positive_is_refused(alpha):
    with pytest.raises(ValueError, match=f"alpha.*{alpha}"):
        split(labels(20), labels(5), 5, "dirichlet", dirichlet=alpha)


def test_a_test_class_without_training_samples_is_refused():
    with refuses("test labels", "3"):
        split(np.array([0, 1, 2, 0]), np.array([0, 3]), 2, "iid")


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "labels"])
def test_the_number_of_calls_does_not_grow_with_the_clients(scheme):
    y, dealt = labels(200_000), []
    # About 500 calls. One call per client would be 100,000.
    assert count_calls(lambda: dealt.append(split(y, labels(100), 100_000, scheme, dirichlet=50.0))) < 2000
    assert np.diff(dealt[0].train.offsets).min() >= 1


def test_federate_stores_the_rows_of_each_client_contiguously():
    x = np.arange(6, dtype=np.float32)[:, None]
    y = np.array([0, 1, 0, 1, 0, 1])
    dataset = Dataset("six", x, y, x[:2], y[:2], classes=2)
    dealt = Partition(
        Shards(np.array([5, 0, 2, 4, 1, 3]), np.array([0, 1, 4, 6])),
        Shards(np.array([1, 0]), np.array([0, 0, 2, 2])),
    )
    federated = federate_dataset(dataset, dealt)
    assert federated.sizes.tolist() == [1, 3, 2]
    samples, targets = federated.client(1)
    assert samples[:, 0].tolist() == [0, 2, 4]
    assert targets.tolist() == [0, 0, 0]
    assert np.shares_memory(samples, federated.x_train)
    assert federated.test_order[federated.test_offsets[1] : federated.test_offsets[2]].tolist() == [1, 0]
    assert federated.dataset.x_test is dataset.x_test
    assert dataset.x_train[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
