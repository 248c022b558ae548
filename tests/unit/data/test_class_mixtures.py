"""Equal shards with class mixtures (Hsu, mixture of Dirichlet) against the moments of their distributions."""

import numpy as np
import pytest
from refusals import refuses
from scipy import stats

from fedraa.data import divide_samples, make_partitioner
from fedraa.data.partition.equal_shards import draw_equal_shards
from fedraa.data.partition.hsu import Hsu
from fedraa.data.partition.mixture import Mixture

LABELS = np.repeat(np.arange(10), 1000)


def shares(partitioner, clients, labels=LABELS, seed=0):
    """Return the share of each class in the training shard of each client, [clients, classes]."""
    partition = divide_samples(make_partitioner(partitioner), labels, labels, clients, seed=seed)
    counts = [
        np.bincount(labels[rows], minlength=labels.max() + 1)
        for rows in np.split(partition.train.order, partition.train.offsets[1:-1])
    ]
    return np.array(counts) / np.sum(counts, axis=1, keepdims=True)


@pytest.mark.parametrize("partition", ["hsu:0.1", "hsu(alpha=0.1, per_class=True)", "mixture", "mixture(gamma=1.0)"])
@pytest.mark.parametrize("clients", [1, 7, 97])
def test_every_client_gets_the_same_number_of_samples_and_no_sample_twice(partition, clients):
    labels = np.repeat(np.arange(5), [5, 80, 300, 1000, 617])
    partition = divide_samples(make_partitioner(partition), labels, labels, clients, seed=3)
    assert np.diff(partition.train.offsets).tolist() == [2002 // clients] * clients
    assert len(set(partition.train.order.tolist())) == 2002 // clients * clients


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        # E[sum q^2] of Dir(a · 1) with L = 10 classes is (1 + a) / (1 + 10 a); Hsu's alpha is 10 a.
        ("hsu:0.1", 1.01 / 1.1),
        ("hsu:0.5", 1.05 / 1.5),
        ("hsu:1", 1.1 / 2),
        ("hsu(alpha=0.1, per_class=True)", 1.1 / 2),
        ("hsu(alpha=0.5, per_class=True)", 1.5 / 6),
        ("hsu(alpha=1, per_class=True)", 2 / 11),
    ],
)
def test_hsu_has_the_expected_concentration_of_labels(partition, expected):
    """The first 10 of 50 rows of 400 clients exhaust no class, so their counts are sums of 10 draws from q.

    Then E[sum (count / 10)^2] = 1/10 + (1 - 1/10) E[sum q^2]. All 50 rows have a lower value: classes run out.
    """
    labels = np.repeat(np.arange(10), 2000)
    rng = np.random.default_rng(0)
    partitioner = make_partitioner(partition)
    shards = [rows for _ in range(3) for rows in partitioner.assign(labels, 400, rng)]
    counts = np.array([np.bincount(labels[rows[:10]], minlength=10) for rows in shards])
    concentration = ((counts / 10) ** 2).sum(axis=1).mean()
    assert concentration == pytest.approx(1 / 10 + 9 / 10 * expected, abs=0.02)


def test_hsu_draws_around_the_class_prior():
    """A large alpha gives every client the classes of the data, here 1 : 4 : 5."""
    labels = np.repeat(np.arange(3), [1000, 4000, 5000])
    assert shares("hsu:1e6", 10, labels) == pytest.approx(np.tile([0.1, 0.4, 0.5], (10, 1)), abs=0.06)
    # With per_class the class shares of the data have no effect: the first samples of a client are uniform over
    # classes.
    rows = Hsu(1e6, per_class=True).assign(labels, 100, np.random.default_rng(0))
    first = np.array([np.bincount(labels[mine[:20]], minlength=3) for mine in rows]).mean(axis=0) / 20
    assert first == pytest.approx([1 / 3] * 3, abs=0.03)


def test_the_order_of_drawing_favours_no_client():
    """Leftovers are shared: the first and the last clients have mixtures of equal concentration."""
    labels = np.repeat(np.arange(10), 100)
    squares = np.array([(shares("hsu:0.1", 20, labels, seed) ** 2).sum(axis=1) for seed in range(60)])
    first, last = squares[:, :10].mean(axis=1), squares[:, 10:].mean(axis=1)
    assert stats.ttest_rel(first, last).pvalue > 0.01


def test_client_draws_from_other_classes_when_its_class_is_used_up():
    """Both clients draw only class 0, which has 4 of 12 rows. When it is used up, they draw from the other classes."""
    classes = np.repeat([0, 1], [4, 8])
    rows = draw_equal_shards(classes, np.array([[1.0, 0], [1, 0]]), np.random.default_rng(0))
    assert [classes[mine].tolist() for mine in rows] == [[0, 0, 1, 1, 1, 1]] * 2
    assert sorted(np.concatenate(rows)) == list(range(12))


def test_a_test_shard_has_the_mixture_of_its_training_shard():
    labels = np.repeat(np.arange(4), 500)
    partition = divide_samples(make_partitioner("hsu:0.3"), labels, labels, 8, seed=1)
    train, test = (
        np.array([np.bincount(labels[rows], minlength=4) for rows in np.split(part.order, part.offsets[1:-1])])
        for part in (partition.train, partition.test)
    )
    assert np.abs(train - test).max() <= 1


def test_clients_of_a_mixture_belong_to_prototypes_of_equal_size():
    """3 prototypes of 12 clients: 4 clients each, with nearly equal mixtures within a prototype."""
    labels = np.repeat(np.arange(10), 3000)
    rows = Mixture(alpha=1.0, prototypes=3).assign(labels, 12, np.random.default_rng(4))
    held = np.array([np.bincount(labels[mine[:400]], minlength=10) / 400 for mine in rows])
    distance = np.abs(held[:, None] - held).sum(axis=2)
    assert ((distance < 0.3).sum(axis=1) == 4).all()


def test_gamma_mixes_the_prototypes():
    """With a large gamma all clients have the mean of the prototypes, with a small one they have one prototype."""
    labels = np.repeat(np.arange(10), 3000)

    def spread(gamma):
        rows = Mixture(1.0, 3, gamma).assign(labels, 12, np.random.default_rng(4))
        return np.array([np.bincount(labels[mine[:400]], minlength=10) / 400 for mine in rows]).std(axis=0).mean()

    assert spread(1e6) < 0.03 < 0.05 < spread(1e-3)


@pytest.mark.parametrize(
    ("partition", "field"),
    [
        ("hsu:0", "alpha"),
        ("hsu(alpha=-1)", "alpha"),
        ("mixture(gamma=0)", "gamma"),
        ("mixture(prototypes=0)", "prototypes"),
    ],
)
def test_mixture_parameter_that_is_not_positive_is_refused(partition, field):
    with refuses(f"partition.{field}"):
        make_partitioner(partition)


def test_labels_without_classes_are_refused():
    with refuses("partition", "Hsu"):
        divide_samples(Hsu(), np.zeros((30, 2)), np.zeros((10, 2)), 3, seed=0)
