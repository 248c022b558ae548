"""Images of clients and the division of natural data, from small files in the forms of LEAF and Hugging Face."""

import io
import json
import shutil

import numpy as np
import pytest
from leaf_files import deal, write_leaf
from refusals import refuses

import fedraa as fl
from fedraa.data import load_dataset
from fedraa.data.natural import NATURAL
from fedraa.data.natural.folders import hold_out_rows
from fedraa.data.natural.tables import read_tables

RNG = np.random.default_rng(0)


def images(*codes):
    """Return images as LEAF writes them: 784 numbers k / 255."""
    return [(np.full(784, code) / 255).tolist() for code in codes]


def test_femnist_of_leaf_has_the_images_of_each_writer(tmp_path):
    ramp = (np.arange(784) % 256 / 255).tolist()
    train = [
        {"f0000_14": ([ramp, *images(7)], [0, 61])},
        {"f0001_41": (images(9), [36]), "f0002_01": (images(3), [10])},
    ]
    test = [{"f0000_14": (images(1, 2), [5, 6]), "f0001_41": (images(4), [36])}]
    write_leaf(tmp_path, "femnist", train, test)
    data = load_dataset("femnist", tmp_path)
    assert (data.name, data.classes, data.own_clients) == ("femnist", 62, 3)
    dealt = deal(data, 3)
    assert dealt.names == ("f0000_14", "f0001_41", "f0002_01")
    x, y = dealt.client(0)
    assert (x.dtype, x.shape, y.tolist()) == (np.float32, (2, 1, 28, 28), [0, 61])
    # Row major: pixel (2, 5) of the ramp is number 61.
    assert x[0, 0, 2, 5] == np.float32(61 / 255)
    assert [dealt.test_of(client)[1].tolist() for client in range(3)] == [[5, 6], [36], []]


@pytest.mark.parametrize("below", [".", "data", "data/femnist", "data/femnist/data"])
def test_data_dir_may_be_any_folder_above_the_files(below, tmp_path):
    write_leaf(tmp_path, "femnist", [{"a": (images(1), [0])}], [{"a": (images(2), [1])}])
    if below == "data":
        shutil.move(tmp_path / "data" / "femnist" / "data", tmp_path / "data" / "here")
        shutil.move(tmp_path / "data" / "here", tmp_path / "data" / "femnist_data")
        shutil.rmtree(tmp_path / "data" / "femnist")
        shutil.move(tmp_path / "data" / "femnist_data", tmp_path / "data" / "femnist")
    assert load_dataset("femnist", tmp_path / below).own_clients == 1


def test_users_of_several_files_are_merged_and_users_without_samples_ignored(tmp_path):
    train = [{"a": (images(1), [0]), "b": (images(2), [1])}, {"a": (images(3), [2])}]
    root = write_leaf(tmp_path, "femnist", train, [{"a": (images(2), [1]), "z": (images(2), [1]), "y": ([], [])}])
    # LEAF leaves users with one sample in user_data, without samples and without an entry in users.
    path = sorted((root / "train").iterdir())[0]
    content = json.loads(path.read_text())
    content["user_data"]["gone"] = {"x": [], "y": []}
    content["num_samples"] = [79, 79]
    path.write_text(json.dumps(content))
    dealt = deal(load_dataset("femnist", tmp_path), 2)
    assert dealt.names == ("a", "b")
    assert [dealt.client(client)[1].tolist() for client in range(2)] == [[0, 2], [1]]
    # The option `-t user` draws the test user z, which has no training samples and is not a client.
    assert len(dealt.dataset.y_test) == 2
    assert dealt.test_of(1)[1].tolist() == []


@pytest.mark.parametrize(
    ("x", "y", "shown"),
    [
        ([[0.5] * 783], [0], "784"),
        ([[0.5] * 784, [0.5] * 3], [0, 1], "user 'w'"),
        ([[200] * 784], [0], "200"),
        (images(1), [62], "62"),
        (images(1), [0.5], "0.5"),
        (images(1), ["a"], "'a'"),
        (images(1, 2, 3), [[0, 1], [0, 1], [0, 62]], "[0, 1]"),
        (images(1, 2), [3, None], "y 1: got None"),
        ([*images(1), [-0.5] * 784], [3, 4], "x 1: got -0.5"),
        ([*images(1), ["ink"] * 784], [3, 4], "x 1"),
        (images(1, 2), [0], "1 entries"),
        ("pixels", [0], "user 'w'"),
    ],
)
def test_malformed_samples_are_refused_with_the_file_and_the_user(x, y, shown, tmp_path):
    write_leaf(tmp_path, "femnist", [{"w": (x, y)}], [{"w": (images(2), [1])}])
    with pytest.raises(ValueError, match=r"all_data_0_niid_05_keep_0_train_9\.json: user 'w'") as error:
        load_dataset("femnist", tmp_path)
    assert shown in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"users": {}}',
        '{"users": ["a"]}',
        '{"users": [1], "user_data": {}}',
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_json_files_that_are_not_in_the_form_of_leaf_are_refused(content, tmp_path):
    root = write_leaf(tmp_path, "femnist", [{"a": (images(1), [0])}], [{"a": (images(2), [1])}])
    path = root / "test" / "other.json"
    path.write_text(content)
    with refuses(str(path)):
        load_dataset("femnist", tmp_path)


def test_a_user_who_is_named_twice_is_refused(tmp_path):
    """Without this check, the samples of this user would count twice."""
    root = write_leaf(tmp_path, "femnist", [{"a": (images(1), [0])}], [{"a": (images(2), [1])}])
    path = root / "train" / "other.json"
    path.write_text(json.dumps({"users": ["b", "b"], "user_data": {"b": {"x": images(1), "y": [0]}}}))
    with refuses(f"{path}: users", "'b'"):
        load_dataset("femnist", tmp_path)


@pytest.mark.parametrize("name", NATURAL)
def test_a_missing_folder_is_refused_with_a_way_to_get_the_data(name, tmp_path):
    for folder in (None, tmp_path, tmp_path / "absent"):
        with refuses("data_dir", name, "get them", got=folder):
            load_dataset(name, folder)


def test_a_run_takes_the_writers_as_clients_and_resumes(tmp_path):
    users = {f"w{number}": (images(*range(number, number + 6)), [number % 3] * 6) for number in range(5)}
    write_leaf(tmp_path, "femnist", [users], [users])
    fields = {"dataset": "femnist", "data_dir": tmp_path, "method": "fedavg", "engine": "local", "quiet": True}
    history = fl.run(**fields, rounds=1, out=tmp_path / "all")
    assert history.config["experiment"]["clients"] == 5
    part = fl.run(**fields, rounds=1, clients=3, out=tmp_path / "part")
    assert part.config["experiment"]["clients"] == 3
    longer = fl.resume(tmp_path / "part", rounds=2)
    whole = fl.run(**fields, rounds=2, clients=3, out=tmp_path / "whole")
    assert longer.summary["model_sha256"] == whole.summary["model_sha256"]
    with refuses("clients", "5", got=6):
        fl.run(**fields, rounds=1, clients=6, out=tmp_path / "more")


def png(pixels):
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def test_femnist_of_hugging_face_is_divided_by_writer(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra huggingface is not installed")
    import pandas as pd

    pixels = RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8)
    columns = {
        "image": [png(image) for image in pixels],
        "writer_id": ["f0000_14"] * 12 + ["f0001_41"] * 8,
        "hsf_id": [0] * 20,
        "character": list(range(20)),
    }
    frame = pd.DataFrame(columns)
    (tmp_path / "data").mkdir()
    parts = [tmp_path / "data" / f"train-0000{number}-of-00002.parquet" for number in range(2)]
    frame[:15].to_parquet(parts[0])
    frame[15:].to_parquet(parts[1])
    dealt = deal(load_dataset("femnist", tmp_path), 2)
    assert dealt.names == ("f0000_14", "f0001_41")
    # A fifth of 12 and of 8 images, rounded down.
    assert [len(dealt.client(n)[1]) for n in range(2)] == [10, 7]
    assert [len(dealt.test_of(n)[1]) for n in range(2)] == [2, 1]
    for n in range(2):
        for x, y in (dealt.client(n), dealt.test_of(n)):
            np.testing.assert_array_equal(x[:, 0], pixels[y] / np.float32(255))
    frame.drop(columns="character").to_parquet(parts[1])
    with refuses(str(parts[1]), "character"):
        load_dataset("femnist", tmp_path)


def test_empty_value_in_a_table_is_refused_with_its_row(tmp_path, monkeypatch):
    """Without this check, a missing writer would become a client with the name None."""
    import pandas as pd

    path = tmp_path / "train.parquet"
    path.touch()
    frame = pd.DataFrame({"user": ["a", "b", None], "text": "good"})
    monkeypatch.setattr(pd, "read_parquet", lambda path, columns: frame[columns])
    with refuses(f"{path} row 2 user"):
        read_tables([path], ("text", "user"))


def test_empty_field_of_a_csv_file_is_refused_with_its_row(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("user,text\na,good\n,bad\n")
    with refuses(f"{path} line 3 user"):
        read_tables([path], ("text", "user"))


def test_a_fifth_of_the_rows_of_each_client_is_held_out():
    owners = np.repeat(["a", "b", "c"], [4, 5, 101])[RNG.permutation(110)]
    held = hold_out_rows(owners, "x")
    assert [int(held[owners == name].sum()) for name in "abc"] == [0, 1, 20]
    np.testing.assert_array_equal(held, hold_out_rows(owners, "x"))
    assert (held != hold_out_rows(owners, "y")).any()


def test_celeba_of_leaf_reads_images_when_a_client_trains(tmp_path):
    from PIL import Image

    train = [{"2880": (["000001.jpg", "000002.jpg"], [1.0, 0.0]), "31": (["000003.jpg"], [0.0])}]
    root = write_leaf(tmp_path, "celeba", train, [{"31": (["000004.jpg"], [1.0])}])
    folder = root / "raw" / "img_align_celeba"
    folder.mkdir(parents=True)
    for number in range(1, 5):
        Image.new("RGB", (178, 218), (51 * number, 0, 255)).save(folder / f"{number:06d}.jpg", quality=100)
    dealt = deal(load_dataset("celeba", tmp_path), 2)
    assert dealt.source is not None
    assert dealt.names == ("2880", "31")
    x, y = dealt.client(0)
    assert (x.shape, y.tolist()) == ((2, 3, 84, 84), [1, 0])
    np.testing.assert_allclose(x[1].mean(axis=(1, 2)), [0.4, 0, 1], atol=0.02)
    assert dealt.test_of(1)[1].tolist() == [1]
    # The data have three samples, but only two clients.
    for clients in (3, 4):
        with refuses("clients", "the 2 clients of the data", got=clients):
            deal(load_dataset("celeba", tmp_path), clients)
    (folder / "000003.jpg").unlink()
    with refuses(str(folder / "000003.jpg")):
        load_dataset("celeba", tmp_path)


@pytest.mark.parametrize("name", ["../../secret.jpg", 3, "/etc/passwd"])
def test_names_of_images_outside_the_folder_are_refused(name, tmp_path):
    write_leaf(tmp_path, "celeba", [{"1": ([name], [1.0])}], [{"1": (["000004.jpg"], [1.0])}])
    with pytest.raises(ValueError, match="user '1'"):
        load_dataset("celeba", tmp_path)
