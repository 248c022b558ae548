"""The scaling of inputs against NumPy: per channel, by the training samples, and equal for all kinds of sources."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

import fedraa as fl
from fedraa.data import DivisionSettings, as_dataset, divide_dataset, make_partitioner, make_transforms
from fedraa.data import measured as measured_module
from fedraa.data import scaling as scaling_module
from fedraa.data.measured import read_measured
from fedraa.data.scaling import apply_scaling, measure_scaling
from fedraa.data.sources.clients import GeneratedSamples, StoredSamples
from fedraa.data.sources.rows import NpyRows, as_rows

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (60, 3, 4, 5), np.uint8)
Y = np.arange(60) % 3


def by_hand(x: Any) -> Any:
    x = x.astype(np.float64)
    axes = (0, *range(2, x.ndim))
    return (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)


def dealt(data: Any, **more: Any) -> Any:
    more = {"partition": "iid", "transforms": ()} | more
    transforms = make_transforms(more.pop("transforms"), seed=0)
    data = as_dataset(data) if isinstance(data, fl.Dataset) else data
    return divide_dataset(
        data, DivisionSettings(make_partitioner(more.pop("partition")), 4, 0, transforms, standardise=True, **more)
    )


def all_of(data: Any) -> Any:
    return np.concatenate([data.client(client)[0] for client in range(4)])


@pytest.mark.parametrize("x", [BYTES, BYTES / 255, RNG.normal(3, 5, (50, 7)), RNG.normal(3, 5, (40, 3, 6))])
@pytest.mark.parametrize("block", [10, 2**24])
def test_scaled_samples_have_mean_0_and_variance_1_per_channel(
    x: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling_module, "BLOCK_VALUES", block)
    np.testing.assert_allclose(apply_scaling(measure_scaling(x), x), by_hand(x), atol=1e-5)


def test_scaling_handles_constant_huge_and_tiny_channels() -> None:
    spread = RNG.normal(size=100)
    x = np.stack([np.full(100, 7.0), spread * 1e25, spread * 1e-25], axis=1).astype(np.float32)
    scaled = apply_scaling(measure_scaling(x), x)
    assert (scaled[:, 0] == 0).all()
    np.testing.assert_allclose(scaled[:, 1:], by_hand(x[:, 1:]), atol=1e-4)
    assert apply_scaling(measure_scaling(x), np.full((1, 3), 9, np.float32))[0, 0] == 2


def test_non_finite_samples_do_not_affect_the_scaling() -> None:
    x = RNG.normal(3, 5, (20, 4)).astype(np.float32)
    x[[2, 7], 1] = np.nan, np.inf
    finite_rows = np.delete(np.arange(20), [2, 7])
    np.testing.assert_allclose(apply_scaling(measure_scaling(x), x)[finite_rows], by_hand(x[finite_rows]), atol=1e-5)
    assert measure_scaling(np.full((3, 2), np.nan, np.float32)) is None


def test_tokens_and_masks_are_not_scaled() -> None:
    tokens, features = RNG.integers(0, 9, (30, 6)), RNG.normal(2, 3, (30, 4)).astype(np.float32)
    mask = (RNG.random((30, 6)) < 0.5).astype(np.float32)
    inputs = {
        "ids": tokens,
        "mask": mask,
        "bool": mask > 0,
        "features": features,
        "pixel": BYTES[:30],
        "one": features[:, 0],
    }
    scaled = apply_scaling(measure_scaling(inputs), inputs)
    for name in ("ids", "mask", "bool"):
        assert scaled[name] is inputs[name]
    np.testing.assert_allclose(scaled["features"], by_hand(features), atol=1e-5)
    np.testing.assert_allclose(scaled["pixel"], by_hand(BYTES[:30]), atol=1e-5)
    one = features[:, 0]
    np.testing.assert_allclose(scaled["one"], (one - one.mean()) / one.std(), atol=1e-5)
    # A single input is scaled even if its values are 0 and 1, like columns of a table.
    assert measure_scaling(mask) is not None


def test_scaling_refuses_inputs_that_the_training_samples_lack() -> None:
    scaling = measure_scaling({"a": BYTES})
    with refuses("samples", "['a']", got=["b"]):
        apply_scaling(scaling, {"b": BYTES})


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return torch.from_numpy(self.x[row]), int(Y[row])


class Drawn(Pairs):
    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x.float() + torch.rand(()) + float(np.random.rand()), y


class Table:
    """A table in the form of Hugging Face: lists, of which whole numbers are int64."""

    column_names = ("image", "label")
    features: tuple[str, ...] = ()

    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, what: Any) -> Any:
        if isinstance(what, str):
            return Y.tolist()
        return {"image": [self.x[row].tolist() for row in what], "label": [int(Y[row]) for row in what]}


def npy(folder: Path) -> NpyRows:
    np.save(folder / "x.npy", BYTES)
    np.save(folder / "y.npy", Y)
    return NpyRows(folder / "x.npy", folder / "y.npy")


def test_every_kind_of_source_is_scaled_to_the_same_bits(tmp_path: Path) -> None:
    wanted = dealt(fl.Dataset("mine", BYTES, Y, BYTES[:12], Y[:12], 3))
    np.testing.assert_allclose(wanted.dataset.x_test, by_hand(BYTES)[:12], atol=1e-5)
    ways: list[Any] = [(BYTES, Y), Pairs(BYTES), Table(BYTES), npy(tmp_path)]
    for train in ways:
        data = dealt(fl.FederatedDataset("mine", train, (BYTES[:12], Y[:12])))
        np.testing.assert_array_equal(all_of(data), all_of(wanted))
        np.testing.assert_array_equal(data.dataset.x_test, wanted.dataset.x_test)


def test_scaling_does_not_change_the_arrays_of_the_user() -> None:
    x = BYTES.astype(np.float32)
    before = x.copy()
    dealt(fl.Dataset("mine", x, Y, x[:12], Y[:12], 3))
    np.testing.assert_array_equal(x, before)


def test_scaling_of_many_samples_reads_a_subset_drawn_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_module, "MAX_SAMPLES", 20)
    numbers = np.arange(60, dtype=np.float32)[:, None]
    samples = StoredSamples(as_rows("train", Pairs(numbers)), np.arange(60), np.array([0, 60]))
    rows = read_measured(samples, 0, "train")[:, 0].tolist()
    assert len(set(rows)) == 20
    assert max(rows) > 40
    assert (
        read_measured(samples, 0, "train")[:, 0].tolist() == rows != read_measured(samples, 1, "train")[:, 0].tolist()
    )
    data = dealt(fl.FederatedDataset("mine", Pairs(numbers), (numbers[:12], Y[:12])))
    np.testing.assert_allclose(data.scaling.mean, np.mean(rows), rtol=1e-6)


def test_error_of_a_data_set_raises_input_error() -> None:
    class Broken(fl.Rows):
        def __len__(self) -> int:
            return 60

        def read(self, rows: Any) -> Any:
            raise KeyError("what")

        def labels(self) -> Any:
            return Y

    def made(client: int) -> Any:
        raise OSError("no disk")

    test = BYTES[:12], Y[:12]
    with refuses("dataset 'mine'", "KeyError"):
        dealt(fl.FederatedDataset("mine", Broken(), test))
    with refuses("dataset 'mine': client 0", "OSError"):
        dealt(fl.FederatedDataset("mine", made, test, classes=3, sizes=4), partition="natural")


def test_scaling_of_random_items_depends_only_on_the_seed() -> None:
    data = fl.FederatedDataset("mine", Drawn(BYTES), (BYTES[:12], Y[:12]))
    first = dealt(data).scaling
    torch.rand(3), np.random.rand(3)
    second = dealt(data).scaling
    np.testing.assert_array_equal(first.mean, second.mean)


def test_scaling_of_generated_samples_reads_64_clients() -> None:
    asked = []

    def samples(client: int) -> Any:
        asked.append(client)
        return np.float32(client % 2 * 10 + np.arange(6)[:, None]), [0, 1, 2, 0, 1, 2]

    test = np.zeros((3, 1), np.float32), np.arange(3)
    data = divide_dataset(
        fl.FederatedDataset("made", samples, test, classes=3, sizes=6),
        DivisionSettings(make_partitioner("natural"), 100_000, 0, standardise=True),
    )
    asked.clear()
    read_measured(GeneratedSamples(samples, 6 * np.arange(100_001)), 0, "train")
    assert len(set(asked)) == 64
    odd = sum(client % 2 for client in asked)
    values = np.concatenate([np.arange(6) + 10 * (i < odd) for i in range(64)])
    np.testing.assert_allclose(data.scaling.mean, values.mean(), rtol=1e-6)
    np.testing.assert_allclose(data.scaling.std, values.std(), rtol=1e-6)
    np.testing.assert_allclose(data.client(7)[0][:, 0], (10 + np.arange(6) - values.mean()) / values.std(), rtol=1e-5)


@pytest.mark.parametrize("partition", ["noise", "rotation"])
def test_partition_skew_applies_after_the_scaling(partition: str) -> None:
    square = BYTES[..., :4]
    in_memory = dealt(fl.Dataset("mine", square, Y, square[:12], Y[:12], 3), partition=partition)
    scaled = dealt(fl.Dataset("mine", square, Y, square[:12], Y[:12], 3))
    skewed = np.concatenate(
        [make_partitioner(partition).skew(client, 4, scaled.client(client)[0]) for client in range(4)]
    )
    np.testing.assert_array_equal(all_of(in_memory), skewed)
    read = dealt(fl.FederatedDataset("mine", Pairs(square), (square[:12], Y[:12])), partition=partition)
    np.testing.assert_array_equal(all_of(read), skewed)


@pytest.mark.parametrize(
    ("transform", "change"),
    [
        ("normalize(mean=(100,), std=(50,))", lambda x: (x - np.float32(100)) / np.float32(50)),
        ("v2.Normalize(mean=[100], std=[50])", lambda x: (x - np.float32(100)) / np.float32(50)),
        ("normalize", by_hand),
        ("v2.CenterCrop(2)", lambda x: by_hand(x)[:, :, 1:3, 1:3]),
    ],
)
def test_scaling_precedes_transforms_unless_they_normalize(transform: str, change: Callable[[Any], Any]) -> None:
    x = BYTES[:, :1, :, :4]
    data = dealt(fl.Dataset("mine", x, Y, x[:12], Y[:12], 3), transforms=(transform,))
    np.testing.assert_allclose(data.dataset.x_test, change(x)[:12], atol=1e-5)
