"""Sources of samples: arrays, files and data sets of other packages give the same run. Malformed ones are refused."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

import fedraa as fl
from fedraa import Experiment
from fedraa.data import DivisionSettings, divide_dataset, load_dataset, make_partitioner, make_transforms
from fedraa.data.sources.rows import NpyRows
from fedraa.engine.run_data import with_clients
from fedraa.errors import InputError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 1, 4, 4)).astype(np.float32), np.arange(60) % 3
X_TEST, Y_TEST = RNG.standard_normal((12, 1, 4, 4)).astype(np.float32), np.arange(12) % 3
OWNERS = [f"writer {row % 4}" for row in range(60)]


class Pairs(torch.utils.data.Dataset[Any]):
    """A map-style dataset."""

    def __init__(self, change: Callable[[int, Any, Any], Any] = lambda row, x, y: (x, y)) -> None:
        self.change = change

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> Any:
        return self.change(row, torch.from_numpy(X[row]), int(Y[row]))


class Table:
    """A table in the form of Hugging Face."""

    column_names = ("pixels", "digit")
    features: tuple[str, ...] = ()

    def __len__(self) -> int:
        return 60

    def __getitem__(self, what: Any) -> Any:
        if isinstance(what, str):
            return Y.tolist()
        return {"pixels": [X[row].tolist() for row in what], "digit": [int(Y[row]) for row in what]}


class Read(fl.Rows):
    def __len__(self) -> int:
        return 60

    def read(self, rows: Any) -> Any:
        return X[rows], Y[rows]


def files(folder: Path) -> Any:
    for name, array in {"x": X, "y": Y}.items():
        np.save(folder / f"{name}.npy", array)
    return NpyRows(folder / "x.npy", folder / "y.npy")


def made(train: Any, **more: Any) -> fl.FederatedDataset:
    return fl.FederatedDataset("mine", train, (X_TEST, Y_TEST), **more)


def dealt(data: Any, partition: object = "dirichlet", clients: int = 4, **more: Any) -> Any:
    transforms = make_transforms(("normalize(mean=(1,), std=(2,))",), seed=0)
    return divide_dataset(data, DivisionSettings(make_partitioner(partition), clients, 0, transforms, **more))


@pytest.mark.parametrize("partition", ["dirichlet", "natural", "noise", "rotation"])
def test_every_kind_of_source_gives_each_client_the_same_samples(partition: str, tmp_path: Path) -> None:
    wanted = dealt(made((X, Y), clients=OWNERS), partition)
    table = {"input": "pixels", "target": "digit"}
    for source, more in ((Pairs(), {}), (Table(), table), (Read(), {}), (files(tmp_path), {})):
        data = dealt(made(source, clients=OWNERS, **more), partition)
        assert data.source is not None
        assert data.sizes.tolist() == wanted.sizes.tolist()
        for client in range(4):
            for got, want in zip(data.client(client), wanted.client(client), strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(data.labels, wanted.labels)
        np.testing.assert_array_equal(data.dataset.x_test, (X_TEST - 1) / 2)
        assert data.names == wanted.names


def test_samples_may_be_given_by_client() -> None:
    mine = {name: (X[start::2], Y[start::2]) for start, name in enumerate(("even", "odd"))}
    tests = {"odd": (X_TEST[:2], Y_TEST[:2]), "even": (X_TEST[2:], Y_TEST[2:])}
    data = dealt(fl.FederatedDataset.of_clients("mine", mine, test_of_clients=tests), "natural", 2)
    assert data.names == ("even", "odd")
    np.testing.assert_array_equal(data.client(1)[0], (X[1::2] - 1) / 2)
    np.testing.assert_array_equal(data.test_of(1)[1], Y_TEST[:2])
    with refuses("dataset 'mine': train", "of_clients"):
        dealt(fl.FederatedDataset("mine", mine, (X_TEST, Y_TEST)), "iid", 2)


def test_samples_of_a_client_may_be_generated_when_it_trains() -> None:
    asked = []

    def samples(client: int) -> Any:
        asked.append(client)
        return np.full((3, 1, 4, 4), client, np.float32), [0, 1, 2]

    data = dealt(fl.FederatedDataset("made", samples, (X_TEST, Y_TEST), classes=3, sizes=3), "natural", 100_000)
    # The first client is read three more times: twice to compare its samples, once to check them in float32.
    assert len(asked) <= 64 + 3
    np.testing.assert_array_equal(data.client(99_999)[0], np.full((3, 1, 4, 4), (99_999 - 1) / 2, np.float32))
    assert data.sizes.sum() == 300_000


def test_common_size_of_clients_may_be_an_unsigned_integer() -> None:
    generated = fl.FederatedDataset(
        "made", lambda client: (X[:3], Y[:3]), (X_TEST, Y_TEST), classes=3, sizes=np.uint64(3)
    )
    sizes = dealt(generated, "natural", 4).sizes
    assert sizes.dtype == np.int64
    assert sizes.tolist() == [3] * 4


def test_a_run_takes_the_clients_of_the_data_and_resumes_with_them(tmp_path: Path) -> None:
    data = made(Pairs(), clients=OWNERS)
    history = fl.run(dataset=data, engine="local", method="fedavg", rounds=1, quiet=True, out=tmp_path / "run")
    assert history.config["experiment"]["clients"] == 4
    assert history.config["experiment"]["partition"] == "natural"
    longer = fl.resume(tmp_path / "run", dataset=data, rounds=2)
    whole = fl.run(dataset=data, engine="local", method="fedavg", rounds=2, quiet=True, out=tmp_path / "whole")
    assert longer.summary["model_sha256"] == whole.summary["model_sha256"]


@pytest.mark.parametrize(
    ("fields", "owners", "clients"),
    [
        ({}, 12, 12),
        ({"clients": 10}, 12, 10),
        ({"clients": 10, "partition": "iid"}, 12, 10),
        ({"partition": "iid"}, 12, 10),
        ({}, None, 10),
    ],
)
def test_number_of_clients_comes_from_setting_data_or_default(fields: Any, owners: int | None, clients: int) -> None:
    names = None if owners is None else np.arange(60) % owners
    data = made((X, Y), clients=names)
    experiment = with_clients(Experiment(**fields), data)
    assert experiment.clients == clients
    if "partition" not in fields and owners:
        assert len(set(dealt(data, experiment.partition, clients).names or ())) == clients


def test_more_clients_than_the_data_have_are_refused() -> None:
    with refuses("clients", "12", got=13):
        dealt(made((X, Y), clients=np.arange(60) % 12), "natural", 13)


def test_images_are_read_from_folders_of_clients_and_classes(tmp_path: Path) -> None:
    from PIL import Image

    # The levels of the path are split, client, class and image.
    pixels = RNG.integers(0, 256, (2, 2, 2, 3, 6, 5, 3), dtype=np.uint8)
    for s, split in enumerate(("train", "test")):
        for c in range(2):
            for k, kind in enumerate(("cat", "dog")):
                folder = tmp_path / split / f"client{c}" / kind
                folder.mkdir(parents=True)
                for i in range(3):
                    Image.fromarray(pixels[s, c, k, i]).save(folder / f"{i}.png")
    data = divide_dataset(
        load_dataset(f"folder:{tmp_path}", None), DivisionSettings(make_partitioner("natural"), 2, 0, standardise=True)
    )
    seen = pixels[0].reshape(-1, 6, 5, 3).transpose(0, 3, 1, 2) / 255
    scaled = (seen - seen.mean((0, 2, 3), keepdims=True)) / seen.std((0, 2, 3), keepdims=True)
    x, y = data.client(1)
    np.testing.assert_allclose(x, scaled[6:], atol=1e-5)
    assert y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.names == ("client0", "client1")
    assert data.dataset.x_test.shape == (12, 3, 6, 5)
    resized = load_dataset(f"folder({str(tmp_path)!r}, size=4)", None)
    assert dealt(resized, "natural", 2).client(0)[0].shape == (6, 3, 4, 4)


def test_csv_table_gives_clients_and_features(tmp_path: Path) -> None:
    rows = [f"{i},{'ab'[i % 2]},{('low', 'high')[i % 2]},shop{i % 3}" for i in range(30)]
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(["price,kind,label,client", *rows]))
    data = dealt(load_dataset(str(path), None), "natural", 3)
    assert data.names == ("shop0", "shop1", "shop2")
    # The features are the price and two columns for the kind.
    assert data.dataset.x_train.shape[1] == 3
    assert len(data.dataset.y_train) == 24
    named = load_dataset(f"csv({str(path)!r}, target='client', client='label')", None)
    assert dealt(named, "natural", 2).names == ("high", "low")


def test_test_rows_of_a_table_are_a_fifth_of_the_rows_of_each_client(tmp_path: Path) -> None:
    """All clients keep training rows, also those with a single row."""
    owners = [*(f"shop{i}" for i in range(20)), *["large"] * 13]
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(["price,label,client", *(f"{i},{i % 2},{owner}" for i, owner in enumerate(owners))]))
    data = dealt(load_dataset(str(path), None), "natural", 21)
    assert (len(data.dataset.y_train), len(data.dataset.y_test)) == (31, 2)
    assert len(data.names) == 21
    path.write_text("\n".join(["price,label,client", *(f"{i},{i % 2},shop{i % 8}" for i in range(32))]))
    with pytest.raises(InputError, match="test="):
        load_dataset(str(path), None)


@pytest.mark.parametrize(("odd", "got"), [("inf", math.inf), ("what", "what")])
def test_word_or_infinity_in_a_column_of_numbers_is_refused(odd: str, got: Any, tmp_path: Path) -> None:
    rows = [f"{odd if i == 9 else i},{i % 2},shop{i % 3}" for i in range(30)]
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(["price,label,client", *rows]))
    with refuses(f"dataset {str(path)!r}: column 'price' line 11, client 'shop0'", got=got):
        load_dataset(str(path), None)


def test_npy_arrays_are_read_from_a_folder(tmp_path: Path) -> None:
    arrays = {"x_train": X, "y_train": Y, "x_test": X_TEST, "y_test": Y_TEST, "clients_train": np.arange(60) % 4}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    data = dealt(load_dataset(f"npy:{tmp_path}", None), "natural")
    assert data.source is not None
    np.testing.assert_array_equal(data.client(1)[0], (X[1::4] - 1) / 2)


def test_hugging_face_tables_are_read_from_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra huggingface is not installed")
    columns = {"image": X.tolist(), "label": Y.tolist(), "writer": OWNERS}
    train = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict(train=train, test=train.select(range(12))).save_to_disk(tmp_path / "both")
    train.save_to_disk(tmp_path / "one")
    data = dealt(load_dataset(f"hf({str(tmp_path / 'both')!r}, client='writer')", None), "natural")
    assert data.source is not None
    assert data.names == tuple(sorted(set(OWNERS)))
    np.testing.assert_array_equal(data.client(1)[0], (X[1::4] - 1) / 2)
    assert load_dataset(f"hf:{tmp_path / 'both'}", None).own_clients is None
    with refuses(f"dataset: {tmp_path / 'one'}"):
        load_dataset(f"hf:{tmp_path / 'one'}", None)


def spoilt(row: int, what: str) -> Pairs:
    def change(at: int, x: Any, y: Any) -> Any:
        if at != row:
            return x, y
        return {
            "nan": (x * np.nan, y),
            "label": (x, 7),
            "shape": (x[:, 1:], y),
            "missing": (x, None),
            "word": ("what", y),
            "alone": x,
        }[what]

    return Pairs(change)


NAN = np.where(np.arange(60)[:, None, None, None] == 9, np.nan, X)
SEVEN = np.where(np.arange(60) == 9, 7, Y)
NONE = fl.FederatedDataset("mine", lambda client: ([], []), (X_TEST, Y_TEST), classes=3, sizes=[2, 2, 0, 2])


@pytest.mark.parametrize(
    ("data", "field", "shown"),
    [
        (made((NAN, Y), clients=OWNERS), "x_train row 9 of client 'writer 1'", "allow_nan"),
        (made((X, SEVEN), clients=OWNERS, classes=3), "row 9 of client 'writer 1'", "7"),
        (made((X[:-1], Y)), "train", "59, 60"),
        (made((X, Y), clients=OWNERS[:-1]), "clients", "59"),
        (made((X, Y), clients=[*OWNERS[:-1], None]), "clients row 59", "None"),
        (made("what"), "train", "'what'"),
        (made(Table()), "train input", "pixels, digit"),
        (made(spoilt(9, "missing"), clients=OWNERS), "row 9 label", "None"),
        (made(spoilt(9, "label"), clients=OWNERS, classes=3), "row 9 of client 'writer 1'", "7"),
        (made(spoilt(9, "shape"), clients=OWNERS), "row 9 sample", "[1, 3, 4]"),
        (made(spoilt(9, "word"), clients=OWNERS), "row 9 sample", "'what'"),
        (made(spoilt(9, "alone"), clients=OWNERS), "row 9", "tensor"),
        (made(spoilt(9, "nan"), clients=OWNERS), "client 1: row 9", "NaN"),
        (fl.FederatedDataset("mine", (X, Y), (X_TEST * np.nan, Y_TEST), clients=OWNERS), "test row 0", "NaN"),
        (NONE, "sizes: client 2", "0"),
    ],
)
def test_wrong_samples_are_refused_before_the_start(data: fl.FederatedDataset, field: str, shown: str) -> None:
    with refuses(f"dataset 'mine': {field}", shown) as caught:
        dealt(data, "natural")
    assert "\n" not in str(caught.value)


def test_non_finite_samples_are_accepted_with_allow_nan() -> None:
    for train in (spoilt(9, "nan"), (NAN, Y)):
        data = dealt(made(train, clients=OWNERS), "natural", allow_nan=True)
        assert np.isnan(data.client(1)[0]).any(axis=(1, 2, 3)).sum() == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("folder:there/is/none", "there/is/none/train"),
        ("absent.csv", "absent.csv"),
        ("npy:absent", "absent/x_train.npy"),
    ],
)
def test_missing_files_are_refused_by_name(name: str, file: str) -> None:
    with refuses(f"dataset: {file}"):
        load_dataset(name, None)


def test_unknown_option_of_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^dataset: .*traget"):
        load_dataset("csv('absent.csv', traget='y')", None)
