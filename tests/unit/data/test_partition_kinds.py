"""Partitioners: their shards equal counts derived by hand."""

from typing import Any

import numpy as np
import pytest
from refusals import refuses
from scipy import ndimage

from fedraa.data import divide_samples, make_partitioner
from fedraa.data.partition.features import Colour, Rotation
from fedraa.data.partition.natural import Natural
from fedraa.data.partition.quantity import PowerLaw, apportion_sizes, round_shares

LABELS = np.arange(60) % 3
TEST = np.repeat([0, 1, 2], 10)


def sizes(partitioner: object, clients: int, labels: Any = LABELS) -> list[int]:
    partition = divide_samples(make_partitioner(partitioner), labels, labels[:30], clients, seed=0)
    assert len(np.unique(partition.train.order)) == len(partition.train.order)
    return np.diff(partition.train.offsets).tolist()


def test_shards_are_runs_of_the_sorted_labels() -> None:
    """60 samples of 3 classes make 5 x 3 shards of 4. A shard has one class, and a client has three shards."""
    partition = divide_samples(make_partitioner("shards(per_client=3)"), LABELS, TEST, 5, seed=1)
    assert np.diff(partition.train.offsets).tolist() == [12] * 5
    for mine in np.split(LABELS[partition.train.order], partition.train.offsets[1:-1]):
        assert all(len(set(run)) == 1 for run in mine.reshape(3, 4))


def test_apportioned_sizes_follow_the_weights_and_are_at_least_one() -> None:
    """Of 20 samples each of 4 clients gets one. The other 16 are divided 8 : 4 : 3 : 1."""
    assert apportion_sizes(np.array([8.0, 4, 3, 1]), 20).tolist() == [9, 5, 4, 2]
    assert apportion_sizes(np.array([1.0, 1, 1]), 5).tolist() == [2, 2, 1]
    assert apportion_sizes(np.array([1.0, 1e-30]), 2).tolist() == [1, 1]


def test_power_law_weights_client_k_by_k_to_the_minus_exponent() -> None:
    """The weights 1, 1/2, 1/3, 1/4 have the sum 25/12. They divide 60 - 4 = 56 samples: 26.88, 13.44, 8.96, 6.72."""
    assert sorted(sizes(PowerLaw(1.0), 4), reverse=True) == [28, 14, 10, 8]
    assert sizes("powerlaw(exponent=0)", 4) == [15, 15, 15, 15]


def test_zipf_sizes_are_the_rounded_shares() -> None:
    """The weights 1, 1/2, ..., 1/5 have the sum 137/60. They divide 100 samples: 43.80, 21.90, 14.60, 10.95, 8.76."""
    assert round_shares(1 / np.arange(1.0, 6), 100).tolist() == [44, 22, 14, 11, 9]
    assert sorted(sizes("zipf:1", 5, np.zeros(100, np.int64)), reverse=True) == [44, 22, 14, 11, 9]
    assert sizes("zipf(exponent=0)", 4) == [15, 15, 15, 15]
    # The last of 12 clients has the weight 1/12^3, and the sum of all weights is 1.2.
    with refuses("partition", "powerlaw"):
        sizes("zipf:3", 12)


def test_dirichlet_sizes_have_the_variance_of_the_distribution() -> None:
    """Var of one share of Dir(b · 1) over n clients: (1/n)(1 - 1/n) / (n b + 1)."""
    clients, labels = 50, np.zeros(100_000, np.int64)
    shares = []
    for seed in range(20):
        partition = divide_samples(make_partitioner("quantity:0.5"), labels, labels[:1], clients, seed=seed)
        shares.append(np.diff(partition.train.offsets) / len(labels))
        assert partition.train.offsets[-1] == len(labels)
    expected = (1 / clients) * (1 - 1 / clients) / (clients * 0.5 + 1)
    assert np.var(shares) == pytest.approx(expected, rel=0.2)
    assert min(sizes("quantity:0.01", 20)) == 1


def test_log_normal_sizes_have_the_given_sigma() -> None:
    many = np.array(sizes("lognormal(sigma=0.5)", 500, np.zeros(500_000, np.int64)))
    assert many.sum() == 500_000
    assert np.log(many).std() == pytest.approx(0.5, abs=0.05)


def test_natural_clients_have_their_own_rows_in_the_order_of_their_ids() -> None:
    owners, test_owners = ["b", "a", "b", "c", "a", "b"], ["c", "a", "x", "a"]
    partition = divide_samples(Natural().bound(owners, test_owners), np.zeros(6, int), np.zeros(4, int), 3, seed=0)
    assert [rows.tolist() for rows in np.split(partition.train.order, partition.train.offsets[1:-1])] == [
        [1, 4],
        [0, 2, 5],
        [3],
    ]
    assert [rows.tolist() for rows in np.split(partition.test.order, partition.test.offsets[1:-1])] == [[1, 3], [], [0]]


def test_numbers_in_an_array_of_objects_are_natural_clients() -> None:
    """A column of a pandas DataFrame is such an array if it was read together with words."""
    natural = Natural().bound(np.array([1, 2, 1], object), np.array([2, 1]))
    partition = divide_samples(natural, np.zeros(3, int), np.zeros(2, int), 2, seed=0)
    assert partition.names == ("1", "2")
    assert partition.test.order.tolist() == [1, 0]


def test_integer_client_ids_below_and_above_2_to_63_stay_exact() -> None:
    """NumPy converts such a list to float64, in which the last two ids are equal."""
    owners = [5, 2**63 + 1, 2**63 + 2]
    partition = divide_samples(Natural().bound(owners, owners[::-1]), np.zeros(3, int), np.zeros(3, int), 3, seed=0)
    assert partition.names == tuple(map(str, owners))
    assert partition.train.order.tolist() == [0, 1, 2]
    assert partition.test.order.tolist() == [2, 1, 0]


def test_subset_of_natural_clients_is_drawn_from_the_seed() -> None:
    owners = np.repeat(np.arange(10), 3)
    natural = Natural().bound(owners, owners)
    drawn = set()
    for seed in range(5):
        partition = divide_samples(natural, owners * 0, owners * 0, 4, seed=seed)
        assert partition.names is not None
        drawn.add(partition.names)
        for shards in (partition.train, partition.test):
            held = [set(owners[rows]) for rows in np.split(shards.order, shards.offsets[1:-1])]
            assert held == [{int(name)} for name in partition.names]
        again = divide_samples(natural, owners * 0, owners * 0, 4, seed=seed)
        assert again.names == partition.names
    assert len(drawn) > 1


def test_class_only_in_test_samples_is_refused_unless_clients_are_natural() -> None:
    train, test = np.zeros(4, int), np.array([0, 1])
    with refuses("test labels", "1"):
        divide_samples(make_partitioner("iid"), train, test, 2, seed=0)
    natural = Natural().bound([0, 0, 1, 1], [1, 0])
    assert divide_samples(natural, train, test, 2, seed=0).test.order.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("partition", "field", "shown"),
    [
        ("natural", "partition", "natural"),
        (Natural().bound([1, 2] * 30, None), "clients", "--clients 2"),
        ("shards(per_client=13)", "partition", "60 samples are too few for 65 shards"),
    ],
)
def test_partition_that_does_not_fit_the_data_is_refused(partition: object, field: str, shown: str) -> None:
    with refuses(field, shown):
        sizes(partition, 5)


def test_negative_exponent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^partition\.exponent: .*-1"):
        sizes("powerlaw(exponent=-1)", 5)


def test_partitioner_by_class_refuses_targets_without_classes() -> None:
    y = np.random.default_rng(0).random((60, 1))
    with refuses("partition", "Dirichlet", "powerlaw"):
        sizes("dirichlet", 5, y)
    assert sizes("iid", 5, y) == [12] * 5


def test_rotation_turns_images_by_quarter_turns() -> None:
    image = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)  # 0 1 / 2 3
    turned = [Rotation().skew(client, 5, image).ravel().tolist() for client in range(5)]
    assert turned == [[0, 1, 2, 3], [1, 3, 0, 2], [3, 2, 1, 0], [2, 0, 3, 1], [0, 1, 2, 3]]


def test_rotation_by_other_angles_interpolates() -> None:
    image = np.random.default_rng(0).normal(size=(2, 3, 17, 17)).astype(np.float32)
    turned = Rotation(30.0).skew(4, 9, image)  # 120 degrees
    expected = ndimage.rotate(image, 120, axes=(3, 2), reshape=False, order=1)
    distance = np.hypot(*(np.indices((17, 17)) - 8))
    np.testing.assert_allclose(turned[..., distance < 7], expected[..., distance < 7], atol=1e-4)
    assert turned.dtype == np.float32
    assert not turned[..., 0, 0].any()


def test_colour_turns_the_hue() -> None:
    """At 120 degrees the channels move on, at 180 degrees x becomes 2 · mean - x; grey stays grey."""
    image = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    colour = Colour()
    np.testing.assert_array_equal(colour.skew(0, 9, image), image)
    np.testing.assert_allclose(colour.skew(1, 9, image), np.roll(image, 1, axis=1), atol=1e-6)
    np.testing.assert_allclose(colour.skew(3, 9, image), image, atol=1e-6)
    mirrored = 2 * image.mean(axis=1, keepdims=True) - image
    np.testing.assert_allclose(Colour(60.0).skew(3, 9, image), mirrored, atol=1e-6)
    grey = np.full((1, 3, 2, 2), 0.7, np.float32)
    np.testing.assert_allclose(Colour(45.0).skew(1, 9, grey), grey, atol=1e-6)
    with refuses("partition", "three channels"):
        colour.skew(1, 9, image[:, :1])


def test_noise_grows_with_the_client() -> None:
    """The noise of client n has the variance level * n / N."""
    noise = make_partitioner("noise(level=2.0)")
    x = np.zeros((4000, 3), np.float32)
    for client, variance in ((0, 0.5), (3, 2.0)):
        assert noise.skew(client, 4, x).var() == pytest.approx(variance, rel=0.05)
    np.testing.assert_array_equal(noise.skew(1, 4, x), noise.skew(1, 4, x))
