import gzip
import hashlib
import importlib
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fedraa.config.experiment import Experiment
from fedraa.data import DivisionSettings, divide_dataset, load_dataset, make_partitioner
from fedraa.data.load import DATASETS
from fedraa.data.partition.iid import Iid
from fedraa.engine import run_data

REAL = Path(__file__).parents[4] / "shared" / "data"


def arrays(**change):
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.normal(3, 5, (12, 4)),
        "y_train": np.arange(12) % 3,
        "x_test": rng.normal(3, 5, (6, 4)),
        "y_test": np.arange(6) % 3,
    }
    return good | change


def scaled(data):
    """Return the scaled samples of a run."""
    return divide_dataset(data, run_data.make_dealing(Experiment(clients=2))).dataset


@pytest.fixture
def save(tmp_path):
    def write(**named):
        path = tmp_path / "mine.npz"
        np.savez(path, **named)
        return str(path)

    return write


def test_digits_are_standardised_and_always_have_the_same_stratified_split():
    first, second = (scaled(load_dataset("digits", None)) for _ in range(2))
    assert (first.x_train.shape, first.x_test.shape, first.classes) == ((1437, 1, 8, 8), (360, 1, 8, 8), 10)
    assert first.x_train.dtype == first.x_test.dtype == np.float32
    assert first.y_train.dtype == np.int64
    assert first.x_train.mean() == pytest.approx(0, abs=1e-5)
    assert first.x_train.std() == pytest.approx(1, abs=1e-5)
    assert np.array_equal(first.x_test, second.x_test)
    everyone = np.bincount(np.concatenate([first.y_train, first.y_test]))
    assert everyone.sum() == 1797
    assert abs(np.bincount(first.y_test) - everyone / 5).max() < 1


def test_digits_equal_the_data_and_the_split_of_scikit_learn():
    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(pixels, labels, test_size=0.2, random_state=0, stratify=labels)
    x_train, x_test = (part.reshape(-1, 1, 8, 8) for part in split[:2])
    digits = load_dataset("digits", None)
    loaded = (digits.x_train, digits.x_test, digits.y_train, digits.y_test)
    assert all(map(np.array_equal, loaded, (x_train, x_test, *split[2:])))


def test_run_does_not_import_packages_that_it_does_not_need(tmp_path):
    """The import of each of these packages takes nearly a second."""
    code = f"""
import sys, fedraa, pathlib
out = pathlib.Path({str(tmp_path / "run")!r})
fedraa.run(fedraa.Experiment(clients=2, engine="local", updates=2, quiet=True, out=out))
print({{"torch._dynamo", "sklearn", "scipy", "torchvision", "matplotlib"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_good_npz_file_loads(save):
    data = load_dataset(save(**arrays()), None)
    assert (data.name, data.classes) == ("mine", 3)
    assert data.x_train.dtype == np.float32
    assert data.x_train.flags.c_contiguous
    assert data.x_train == pytest.approx(arrays()["x_train"])
    assert scaled(data).x_train.mean(axis=0) == pytest.approx(np.zeros(4), abs=1e-6)
    assert scaled(data).x_train.std(axis=0) == pytest.approx(np.ones(4))
    assert data.y_test.tolist() == [0, 1, 2, 0, 1, 2]


def test_pixels_as_bytes_and_as_fractions_give_the_same_images(save):
    rng = np.random.default_rng(1)
    pixels = {key: rng.integers(0, 256, (n, 3, 5, 5), np.uint8) for key, n in (("x_train", 12), ("x_test", 6))}
    as_bytes = scaled(load_dataset(save(**arrays(**pixels)), None))
    as_fractions = scaled(load_dataset(save(**arrays(**{key: x / 255 for key, x in pixels.items()})), None))
    assert as_bytes.x_train == pytest.approx(as_fractions.x_train, abs=1e-5)
    assert as_bytes.x_test == pytest.approx(as_fractions.x_test, abs=1e-5)


def test_two_dimensional_integers_are_read_as_tokens(save):
    tokens = np.arange(48, dtype=np.int32).reshape(12, 4)
    data = load_dataset(save(**arrays(x_train=tokens, x_test=tokens[:6])), None)
    assert data.x_train.dtype == np.int64
    assert np.array_equal(data.x_train, tokens)


def spoiled(key, index, value):
    array = arrays()[key].copy()
    array[index] = value
    return {key: array}


@pytest.mark.parametrize(
    ("change", "field", "names"),
    [
        ({"x_train": np.zeros((11, 4))}, ": y_train", ["[12]", "11"]),
        ({"x_test": np.zeros((6, 5))}, ": x_test", ["[6, 5]"]),
        ({"x_test": np.zeros((0, 4)), "y_test": np.zeros(0, int)}, ": x_test", ["[0, 4]"]),
        ({"x_train": np.zeros(12)}, ": x_train", ["[12]"]),
        ({"x_train": np.zeros((12, 4), complex)}, ": x_train", ["complex128"]),
        ({"y_train": np.zeros((12, 1), int)}, ": y_train", ["[12, 1]"]),
        ({"y_test": np.zeros(6)}, ": y_test", ["float64"]),
        (spoiled("y_train", 3, -1), ": y_train row 3", ["-1"]),
        (spoiled("y_test", 0, 3), ": y_test", ["3"]),
        (spoiled("y_train", 0, 10**6), ": y_train", ["1000000"]),
        (spoiled("x_test", (2, 1), np.inf), ": x_test row 2", ["float32"]),
        (spoiled("x_test", (2, 1), 1e300), ": x_test row 2", ["float32"]),
        ({"x_train": np.full((12, 4), -1), "x_test": np.ones((6, 4), int)}, ": x_train", ["-1"]),
        ({"x_train": np.array([[object()]] * 12)}, "", ["allow_pickle=False"]),
    ],
)
def test_npz_with_a_wrong_array_is_refused(save, change, field, names):
    path = save(**arrays(**change))
    with refuses(f"dataset {str(path)!r}{field}", *names) as caught:
        load_dataset(path, None)
    assert "\n" not in str(caught.value)


def test_non_finite_sample_is_refused_with_its_client_and_excluded_from_scaling(save):
    data = load_dataset(save(**arrays(**spoiled("x_train", (2, 1), np.inf))), None)
    let_through = divide_dataset(data, DivisionSettings(Iid(), 3, seed=0, allow_nan=True, standardise=True)).x_train
    finite_rows = let_through[np.isfinite(let_through).all(axis=1)]
    assert len(finite_rows) == 11
    assert finite_rows.mean(axis=0) == pytest.approx(0, abs=1e-6)
    with refuses("dataset 'mine': x_train row 2 of client 0"):
        divide_dataset(data, DivisionSettings(Iid(), 3, seed=0))
    nothing = load_dataset(save(**arrays(x_train=np.full((12, 4), np.nan))), None)
    with refuses("dataset 'mine': x_train row 0 of client 1"):
        divide_dataset(nothing, DivisionSettings(Iid(), 3, seed=0, standardise=True))


def test_npz_file_may_name_the_client_of_each_row(save):
    whose = {"clients_train": np.repeat(["ann", "bob", "cy"], 4), "clients_test": np.repeat(["ann", "bob", "cy"], 2)}
    data = load_dataset(save(**arrays(), **whose), None)
    dealt = divide_dataset(data, DivisionSettings(make_partitioner("natural"), 3, seed=0))
    assert dealt.names == ("ann", "bob", "cy")
    assert dealt.sizes.tolist() == [4, 4, 4]
    for change, field in (
        (spoiled("x_train", (6, 1), np.nan), "x_train row 6 of client 'bob'"),
        (spoiled("y_train", 9, -1), "row 9 of client 'cy'"),
    ):
        spoilt = load_dataset(save(**arrays(**change), **whose), None)
        with refuses(f"dataset 'mine': {field}"):
            divide_dataset(spoilt, DivisionSettings(make_partitioner("natural"), 3, seed=0))
    path = save(**arrays(), clients_train=np.zeros((12, 2), int))
    with refuses(f"dataset {str(path)!r}: clients_train", "[12, 2]"):
        load_dataset(path, None)


def test_incomplete_or_damaged_npz_files_are_refused(tmp_path, save):
    path = save(x_train=np.zeros((2, 2)), y_test=np.zeros(2, int))
    field = f"dataset {str(path)!r}"
    with refuses(field, "y_train, x_test"):
        load_dataset(path, None)
    with refuses(f"dataset {str(tmp_path / 'absent.npz')!r}"):
        load_dataset(str(tmp_path / "absent.npz"), None)
    for content in (b"", b"not an archive", b"PK\x03\x04 cut short"):
        Path(path).write_bytes(content)
        with refuses(field):
            load_dataset(path, None)
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    with refuses(field, "single array"):
        load_dataset(path, None)
    good = Path(save(**arrays()))
    content = bytearray(good.read_bytes())
    # The byte is inside the first array, so its checksum is wrong.
    content[200] ^= 0xFF
    good.write_bytes(content)
    with refuses(f"dataset {str(good)!r}", "numpy.savez"):
        load_dataset(str(good), None)


def test_unknown_names_and_missing_folders_are_refused(tmp_path):
    with refuses("dataset", "digits, mnist", got="imagenet"):
        load_dataset("imagenet", None)
    for name in DATASETS[1:]:
        for folder in (None, tmp_path / "absent"):
            with refuses("data_dir", name, got=folder):
                load_dataset(name, folder)


def test_npz_with_clients_of_only_the_test_samples_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    x, y = np.zeros((6, 3), np.float32), np.arange(6) % 2
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, clients_test=y)
    with refuses(f"dataset '{path}'", "clients_train", "clients_test"):
        load_dataset(str(path), None)


def write_agnews(folder, train, test):
    (folder / "agnews").mkdir()
    for name, rows in (("train", train), ("test", test)):
        with gzip.open(folder / "agnews" / f"{name}.csv.gz", "wt") as file:
            file.write(rows)


def test_agnews_words_are_ranked_by_training_frequency(tmp_path):
    write_agnews(
        tmp_path,
        'label,text\n0,"b a, B: c"\n3,a b NA\n',
        "label,text\n1,zebra B! c-na\n2,null\n",
    )
    data = load_dataset("agnews", tmp_path)
    # Ids are by frequency, then by the alphabet: b (three times) has 2, a (twice) 3, c and na 4 and 5. Unknown words
    # have 1.
    assert data.x_train.shape == (2, 64)
    assert data.x_train[:, :5].tolist() == [[2, 3, 2, 4, 0], [3, 2, 5, 0, 0]]
    assert data.x_test[:, :5].tolist() == [[1, 2, 4, 5, 0], [1, 0, 0, 0, 0]]
    assert data.x_train.dtype == np.int64
    assert (data.y_train.tolist(), data.y_test.tolist(), data.classes) == ([0, 3], [1, 2], 4)
    assert data.y_train.flags.writeable


def test_agnews_keeps_the_most_frequent_words_and_the_start_of_a_long_text(tmp_path):
    words = [f"w{i:05}" for i in range(11_000)]
    rows = "".join(f"0,{' '.join(words[i : i + 50])}\n" for i in range(0, 11_000, 50))
    long = "0," + "w00000 " * 70 + "\n"
    write_agnews(tmp_path, "label,text\n" + rows + long, "label,text\n0,w09997 w09998\n")
    data = load_dataset("agnews", tmp_path)
    assert data.x_train.max() == 9_999
    # The row has the first 64 of the 70 words.
    assert (data.x_train[-1] == 2).all()
    assert data.x_test[0, :3].tolist() == [9_999, 1, 0]


def test_agnews_with_spaces_after_the_commas_is_read_whole(tmp_path):
    write_agnews(tmp_path, 'text, label\n"a, b", 3\nc, 1\n', 'label, text\n2, "c, a"\n')
    data = load_dataset("agnews", tmp_path)
    assert (data.x_train[:, :3].tolist(), data.y_train.tolist()) == ([[2, 3, 0], [4, 0, 0]], [3, 1])
    assert (data.x_test[:, :3].tolist(), data.y_test.tolist()) == ([[4, 2, 0]], [2])


@pytest.mark.parametrize(
    ("rows", "place", "got"),
    [
        ("label,words\n1,a\n", "", None),
        ("label,text\n", "", None),
        ("label,text\n0,b\none,a\n", " line 3 label", "one"),
        ("label,text\n4,a\n", " line 2 label", "4"),
        ("label,text\n,a\n", " line 2 label", ""),
        ('label,text\n1,"a\n', "", None),
        ("label,text\n1,a\n1,b, c\n", " line 3", 3),
        ("label,text\n1,a\n1\n", " line 3", 1),
    ],
)
def test_malformed_agnews_is_refused(tmp_path, rows, place, got):
    write_agnews(tmp_path, rows, "label,text\n1,a\n")
    with refuses(f"dataset 'agnews': {tmp_path / 'agnews/train.csv.gz'}{place}", got=got):
        load_dataset("agnews", tmp_path)


def test_missing_and_broken_agnews_files_are_refused(tmp_path):
    with refuses(f"dataset 'agnews': {tmp_path / 'agnews/train.csv.gz'}"):
        load_dataset("agnews", tmp_path)
    write_agnews(tmp_path, "label,text\n1,a\n", "label,text\n1,a\n")
    (tmp_path / "agnews" / "test.csv.gz").write_bytes(b"plain")
    with refuses(f"dataset 'agnews': {tmp_path / 'agnews/test.csv.gz'}"):
        load_dataset("agnews", tmp_path)


MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def mnist_files():
    """Write ten training and five test images in the IDX format: a magic number, the sizes, the bytes."""
    rng = np.random.default_rng(0)
    files = {}
    for images, marks, n in ((*MNIST_FILES[:2], 10), (*MNIST_FILES[2:], 5)):
        files[images] = struct.pack(">IIII", 2051, n, 28, 28) + rng.integers(0, 256, n * 784, np.uint8).tobytes()
        files[marks] = struct.pack(">II", 2049, n) + bytes(range(n))
    return files


@pytest.fixture
def mnist_archives(tmp_path, monkeypatch):
    """Return a folder in the layout of torchvision with tiny archives, which torchvision is patched to expect."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    checksums = []
    for name, content in mnist_files().items():
        archive = gzip.compress(content)
        (raw / f"{name}.gz").write_bytes(archive)
        checksums.append((f"{name}.gz", hashlib.md5(archive).hexdigest()))
    mnist = importlib.import_module("torchvision").datasets.MNIST
    monkeypatch.setattr(mnist, "resources", checksums)
    monkeypatch.setattr(mnist, "mirrors", [f"file://{tmp_path}/nowhere/"])
    return tmp_path


def check_mnist(data):
    assert data.x_train.shape == (10, 1, 28, 28)
    assert data.x_test.shape == (5, 1, 28, 28)
    assert data.x_train.flags.c_contiguous
    assert data.y_train.tolist() == list(range(10))
    pixels = np.frombuffer(mnist_files()[MNIST_FILES[0]][16:], np.uint8).astype(float)
    assert np.array_equal(data.x_train.ravel(), pixels)
    in_run = scaled(data).x_train.ravel()
    assert np.sort(in_run) == pytest.approx(np.sort((pixels - pixels.mean()) / pixels.std()), abs=1e-5)


def test_mnist_archives_are_extracted_into_their_folder(mnist_archives):
    check_mnist(load_dataset("mnist", mnist_archives))
    assert (mnist_archives / "MNIST" / "raw" / MNIST_FILES[0]).exists()
    for archive in (mnist_archives / "MNIST" / "raw").glob("*.gz"):
        archive.unlink()
    check_mnist(load_dataset("mnist", mnist_archives))


def test_mnist_loads_from_a_read_only_folder_without_writing(mnist_archives):
    mnist_archives.chmod(0o555)
    check_mnist(load_dataset("mnist", mnist_archives))
    mnist_archives.chmod(0o755)
    assert sorted(path.suffix for path in (mnist_archives / "MNIST" / "raw").iterdir()) == [".gz"] * 4


def test_corrupt_mnist_archive_that_cannot_be_downloaded_is_refused(mnist_archives):
    (mnist_archives / "MNIST" / "raw" / f"{MNIST_FILES[3]}.gz").write_bytes(b"corrupt")
    with refuses("dataset 'mnist'", str(mnist_archives), "torchvision.datasets.MNIST") as caught:
        load_dataset("mnist", mnist_archives)
    assert "\n" not in str(caught.value)


def test_image_test_label_beyond_the_training_classes_is_refused(tmp_path, monkeypatch):
    images, labels = np.zeros((20, 1, 28, 28), np.uint8), np.arange(20) % 10
    monkeypatch.setattr("fedraa.data.vision._load_arrays", lambda *_: (images, labels, images, labels + 1))
    with refuses(f"dataset 'mnist': y_test in {tmp_path}", got=10):
        load_dataset("mnist", tmp_path)


@pytest.mark.skipif(not (REAL / "MNIST").is_dir(), reason=f"no MNIST in {REAL}")
def test_real_mnist_has_the_published_class_counts():
    data = load_dataset("mnist", REAL)
    assert data.x_train.shape == (60_000, 1, 28, 28)
    assert np.bincount(data.y_train)[:3].tolist() == [5923, 6742, 5958]  # as published


@pytest.mark.skipif(not (REAL / "agnews").is_dir(), reason=f"no AG News in {REAL}")
def test_real_agnews_has_the_published_class_counts_and_few_unknown_words():
    data = load_dataset("agnews", REAL)
    assert np.bincount(data.y_test).tolist() == [1900, 1900, 1900, 1900]  # as published
    known = data.x_test[data.x_test > 0]
    # Few words of the test rows are unknown.
    assert (known == 1).mean() < 0.1


@pytest.mark.skipif(not (REAL / "cifar10-subset.npz").is_file(), reason=f"no CIFAR-10 subset in {REAL}")
def test_real_cifar10_subset_has_the_expected_shape_and_deviations():
    data = load_dataset(str(REAL / "cifar10-subset.npz"), None)
    assert data.x_train.shape == (10_000, 3, 32, 32)
    # The values are bytes, and the run scales them.
    assert data.x_train.std(axis=(0, 2, 3)) == pytest.approx([63.14, 62.37, 66.97], abs=0.01)
