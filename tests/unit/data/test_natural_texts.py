"""Texts whose data define the clients: Shakespeare, Sentiment140, Reddit and Stack Overflow, from small files."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from leaf_files import deal, write_leaf
from refusals import read_strict_json, refuses

import fedraa as fl
from fedraa.data import load_dataset
from fedraa.data.natural.shakespeare import CHARACTERS
from fedraa.objectives.builtin import NextToken

EXTRACT = Path(__file__).parents[4] / "shared" / "data" / "shakespeare" / "input.txt"


def window(text):
    return (text * 80)[:80]


def test_shakespeare_of_leaf_has_the_character_windows_of_each_role(tmp_path):
    train = [{"PLAY_A": ([window("ab"), window("\n}")], ["e", " "]), "PLAY_B": ([window("Zé")], ["é"])}]
    test = [{"PLAY_A": ([window("c")], ["d"])}]
    write_leaf(tmp_path, "shakespeare", train, test, hierarchies=["PLAY", "PLAY"])
    data = load_dataset("shakespeare", tmp_path)
    assert (data.classes, data.own_clients) == (80, 2)
    dealt = deal(data, 2)
    x, y = dealt.client(0)
    assert x[0, :3].tolist() == [CHARACTERS.index("a"), CHARACTERS.index("b"), CHARACTERS.index("a")]
    assert x[1, :2].tolist() == [0, 79]
    assert y.tolist() == [CHARACTERS.index("e"), 1]
    # A character that LEAF does not know becomes a space, number 1.
    assert dealt.client(1)[0][0, :2].tolist() == [CHARACTERS.index("Z"), 1]
    assert dealt.client(1)[1].tolist() == [1]
    assert dealt.test_of(0)[1].tolist() == [CHARACTERS.index("d")]
    # With next-token the targets are the characters shifted by one.
    following = deal(load_dataset("shakespeare", tmp_path, NextToken().targets), 2, targets=NextToken().targets)
    x, y = following.client(0)
    assert y.shape == (2, 80)
    np.testing.assert_array_equal(y[:, :-1], x[:, 1:])
    assert y[:, -1].tolist() == [CHARACTERS.index("e"), 1]


def test_shakespeare_of_hugging_face_is_divided_by_role(tmp_path):
    import pandas as pd

    rows = {"character_id": [7] * 10 + [8] * 4, "x": [window(c) for c in "abcdefghijklmn"], "y": list("ABCDEFGHIJKLMN")}
    pd.DataFrame(rows).to_csv(tmp_path / "shakespeare.csv", index=False)
    dealt = deal(load_dataset("shakespeare", tmp_path), 2)
    assert dealt.names == ("7", "8")
    assert [len(dealt.client(n)[1]) for n in range(2)] == [8, 4]
    assert [len(dealt.test_of(n)[1]) for n in range(2)] == [2, 0]
    for n in range(2):
        x, y = dealt.client(n)
        # The classes of a to n are 26 + 2 brackets after those of A to N.
        np.testing.assert_array_equal(x[:, 0] - y, 28)
    with (tmp_path / "shakespeare.csv").open("a") as stream:
        stream.write(f"8,{window('o')},O,more\n")
    with refuses(f"{tmp_path / 'shakespeare.csv'} line 16", got=4):
        load_dataset("shakespeare", tmp_path)


def test_characters_at_the_ends_of_windows_are_kept(tmp_path):
    import pandas as pd

    windows = [' "' + "a" * 77 + " ", '"' + "b" * 78 + "\n"]
    pd.DataFrame({"x": windows, "y": [" ", '"'], "character_id": 1}).to_csv(tmp_path / "s.csv", index=False)
    x, y = load_dataset("shakespeare", tmp_path).train.read(np.arange(2))
    assert ["".join(CHARACTERS[code] for code in row) for row in x] == windows
    assert [CHARACTERS[code] for code in y] == [" ", '"']


def test_shakespeare_as_plain_text_has_long_roles_as_clients(tmp_path):
    """Role A has 30 + 1 + 1,969 = 2,000 characters and is a client. B has 1,999. The last 400 are the test text."""
    drawn = np.random.default_rng(1).choice(list("abc \n"), 1960)
    text = "".join(drawn).replace("\n\n", "ab").strip().ljust(1969, "x")
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text(f"A:\n{'y' * 30}\n\nB:\n{'z' * 1999}\n\nA:\n{text}\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    data = load_dataset("shakespeare", tmp_path)
    dealt = deal(data, 1)
    assert dealt.names == ("A",)
    whole = "y" * 30 + "\n" + text
    codes = np.array([CHARACTERS.index(character) for character in whole])
    assert len(codes) == 2000
    x, y = dealt.client(0)
    np.testing.assert_array_equal(x, np.lib.stride_tricks.sliding_window_view(codes[:1599], 80))
    np.testing.assert_array_equal(y, codes[80:1600])
    x_test, y_test = dealt.test_of(0)
    np.testing.assert_array_equal(x_test, np.lib.stride_tricks.sliding_window_view(codes[1600:1999], 80))
    np.testing.assert_array_equal(y_test, codes[1680:])
    following = deal(load_dataset("shakespeare", tmp_path, NextToken().targets), 1, targets=NextToken().targets)
    x, y = following.client(0)
    np.testing.assert_array_equal(x.ravel(), codes[:1520])
    np.testing.assert_array_equal(y.ravel(), codes[1:1521])


def test_byte_order_mark_is_not_part_of_a_role(tmp_path):
    text = f"A:\n{'y' * 1000}\n\nA:\n{'z' * 999}\n"
    (tmp_path / "input.txt").write_text(text, encoding="utf-8-sig")
    assert deal(load_dataset("shakespeare", tmp_path), 1).names == ("A",)


def test_plays_without_a_long_role_are_refused(tmp_path):
    (tmp_path / "input.txt").write_text("A:\nshort\n")
    with refuses(str(tmp_path / "input.txt"), "2000"):
        load_dataset("shakespeare", tmp_path)


@pytest.mark.skipif(not EXTRACT.exists(), reason="the extract of Shakespeare is not here")
def test_the_extract_of_shakespeare_has_99_roles_of_2000_characters():
    data = load_dataset("shakespeare", EXTRACT.parent)
    assert data.own_clients == 99
    assert "GLOUCESTER" in set(data.clients)


def tweet(text, user):
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]


def test_sent140_of_leaf_has_the_word_ids_of_each_user(tmp_path):
    train = [{"ann": ([tweet("Good good DAY!", "ann"), tweet("a bad day", "ann")], [1, 0])}]
    write_leaf(tmp_path, "sent140", train, [{"ann": ([tweet("good new day", "ann")], [1])}])
    dealt = deal(load_dataset("sent140", tmp_path), 1)
    x, y = dealt.client(0)
    # Ids are by frequency, then by the alphabet: day and good (twice) have 2 and 3, a and bad have 4 and 5.
    assert x[:, :4].tolist() == [[3, 3, 2, 0], [4, 5, 2, 0]]
    assert (x.shape, y.tolist()) == ((2, 25), [1, 0])
    assert dealt.test_of(0)[0][0, :4].tolist() == [3, 1, 2, 0]


def test_a_run_of_clients_without_test_samples_replays(tmp_path):
    """With the option `-t user` of LEAF the test samples belong to users that are not clients."""
    users = {name: ([tweet("a good day", name), tweet("bad", name)], [1, 0]) for name in ("ann", "bob", "cy")}
    write_leaf(tmp_path, "sent140", [{name: users[name] for name in ("ann", "bob")}], [{"cy": users["cy"]}])
    fields = {"dataset": "sent140", "data_dir": tmp_path, "model": "fasttext", "method": "fedasync", "updates": 3}
    history = fl.run(**fields, engine="local", quiet=True, out=tmp_path / "run")
    assert np.isnan(history.summary["client_worst"])
    assert read_strict_json(history.directory / "summary.json")["client_worst"] is None
    assert "consistent" in fl.replay(history.directory)


def test_sent140_of_hugging_face_is_divided_by_user(tmp_path):
    pytest.importorskip("pyarrow", reason="the extra huggingface is not installed")
    import pandas as pd

    rows = {"text": ["good day"] * 5 + ["bad day"] * 5, "user": list("aaaaabbbbb"), "sentiment": [4] * 5 + [0] * 5}
    folder = tmp_path / "default" / "train"
    folder.mkdir(parents=True)
    pd.DataFrame(rows | {"date": "", "query": ""}).to_parquet(folder / "0000.parquet")
    dealt = deal(load_dataset("sent140", tmp_path), 2)
    assert [dealt.client(n)[1].tolist() for n in range(2)] == [[1] * 4, [0] * 4]
    assert [dealt.test_of(n)[1].tolist() for n in range(2)] == [[1], [0]]
    pd.DataFrame(rows | {"sentiment": 2}).to_parquet(folder / "0000.parquet")
    with refuses(f"{folder / '0000.parquet'} row 0 sentiment", "0, 4", got=2):
        load_dataset("sent140", tmp_path)


def test_tweet_without_text_is_refused(tmp_path):
    users = [{"ann": ([tweet(text, "ann")], [1])} for text in (None, "good")]
    root = write_leaf(tmp_path, "sent140", users[:1], users[1:])
    path = next((root / "train").iterdir())
    with refuses(f"{path}: user 'ann': x 0"):
        load_dataset("sent140", tmp_path)


def comment(words):
    """Return a comment as LEAF writes it: inputs, and targets shifted by one word, in sequences of ten."""
    inputs = ["<BOS>", *words, "<EOS>"]
    targets = [*words, "<EOS>", "<PAD>"]
    counts = [1.0] * len(inputs)
    while len(inputs) % 10:
        inputs.append("<PAD>")
        targets.append("<PAD>")
        counts.append(0.0)
    cut = [slice(start, start + 10) for start in range(0, len(inputs), 10)]
    y = {"subreddit": "s", "created_utc": 1, "score": 2}
    y |= {"target_tokens": [targets[part] for part in cut], "count_tokens": [counts[part] for part in cut]}
    return [inputs[part] for part in cut], y


def test_reddit_of_leaf_pads_comments_and_ignores_trivial_targets(tmp_path):
    comments = [comment(["b", "a"]), comment(["b"] * 11), comment(["a"]), comment(["a"] * 9)]
    train = [{"1": ([comments[0][0], comments[1][0]], [comments[0][1], comments[1][1]])}]
    test = [{"1": ([comments[2][0], comments[3][0]], [comments[2][1], comments[3][1]])}]
    write_leaf(tmp_path, "reddit", train, test)
    data = load_dataset("reddit", tmp_path, NextToken().targets)
    # Ids are by frequency: b (12 times) has 2, <BOS> and <EOS> (twice) have 3 and 4, and a has 5.
    assert data.classes == 6
    dealt = deal(data, 1, targets=NextToken().targets)
    x, y = dealt.client(0)
    assert x[0].tolist() == [3, 2, 5, 4, 0, 0, 0, 0, 0, 0]
    # LEAF counts the target of <EOS>, which is padding. Its prediction is trivial, so it does not count here.
    assert y[0].tolist() == [2, 5, 4, *[-100] * 7]
    # The second comment has 13 words with <BOS> and <EOS>: two sequences.
    assert x[1:].tolist() == [[3, *[2] * 9], [2, 2, 4, *[0] * 7]]
    assert y[1:].tolist() == [[2] * 10, [2, 4, *[-100] * 8]]
    # The second test comment has 11 words. The sequence with only <EOS> has nothing to predict and is omitted.
    assert dealt.test_of(0)[1].tolist() == [[5, 4, *[-100] * 8], [*[5] * 9, 4]]
    # Classification does not fit, and the error states the objective that does.
    with pytest.raises(ValueError, match="next-token"):
        deal(data, 1)


def field(number, value):
    """Return a field of Protocol Buffers with a length."""
    size, length = len(value), b""
    while size >= 128:
        length += bytes([size % 128 + 128])
        size //= 128
    return bytes([number * 8 + 2]) + length + bytes([size]) + value


def example(tokens):
    """Return a serialised tf.train.Example with the features of Stack Overflow."""
    texts = {"creation_date": b"2010", "tags": b"python", "title": b"t", "tokens": tokens.encode(), "type": b"answer"}
    features = {name: field(1, field(1, text)) for name, text in texts.items()}
    features["score"] = field(3, field(1, b"\x05"))
    entries = b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in sorted(features.items()))
    return field(1, entries)


def write_stackoverflow(path, rows):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for split, client, tokens in rows:
            database.execute("INSERT INTO examples VALUES (?, ?, ?)", (split, client, example(tokens)))
        for split, client in {row[:2] for row in rows}:
            database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, 1))
    database.close()


def test_stackoverflow_users_have_training_and_test_sentences(tmp_path):
    long = " ".join(["how"] * 200)
    rows = [("train", "12", "how to"), ("train", "12", long), ("test", "12", "to where"), ("train", "13", "how")]
    rows += [("heldout", "14", "how"), ("test", "15", "how")]
    write_stackoverflow(tmp_path / "stackoverflow.sqlite", rows)
    data = load_dataset("stackoverflow", tmp_path, NextToken().targets)
    dealt = deal(data, 1, targets=NextToken().targets)
    # Of the users 12, 13 and 15 only 12 has training and test sentences.
    assert dealt.names == ("12",)
    x, y = dealt.client(0)
    # Ids are by frequency: how (201 times) has 2, <BOS> and <EOS> (twice) have 3 and 4, and to has 5.
    assert x[0, :5].tolist() == [3, 2, 5, 4, 0]
    assert y[0, :5].tolist() == [2, 5, 4, -100, -100]
    assert x.shape == (2, 20)
    assert (x[1].tolist(), y[1].tolist()) == ([3, *[2] * 19], [2] * 20)
    assert dealt.test_of(0)[1][0, :4].tolist() == [5, 1, 4, -100]


def test_stackoverflow_reads_a_part_of_the_users_and_sentences(tmp_path):
    from fedraa.data.natural.stackoverflow import read_stackoverflow

    rows = [(split, f"{user}", "how to") for split in ("train", "test") for user in range(20) for _ in range(4)]
    write_stackoverflow(tmp_path / "stackoverflow.sqlite", rows)
    data = read_stackoverflow(tmp_path, users=5, sentences=3)
    assert data.own_clients == 5
    assert len(data.clients) == 15


def test_a_database_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "stackoverflow.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (a TEXT)")
    database.close()
    with refuses(str(path), "client_metadata"):
        load_dataset("stackoverflow", tmp_path)
    path.write_bytes(b"no database")
    with refuses(str(path)):
        load_dataset("stackoverflow", tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "place"),
    [
        ([["a"] * 10], [1], "y 0"),
        ([["a"] * 10], {"count_tokens": [[1] * 10]}, "y 0"),
        (None, {"target_tokens": None, "count_tokens": None}, "comment 0"),
        ([[5] * 10], {"target_tokens": [["a"] * 10], "count_tokens": [[1] * 10]}, "comment 0"),
        ([["a"] * 10], {"target_tokens": [["a"] * 10], "count_tokens": [["x"] * 10]}, "comment 0"),
    ],
)
def test_malformed_comments_are_refused_with_their_place(x, y, place, tmp_path):
    root = write_leaf(tmp_path, "reddit", [{"ann": ([x], [y])}], [{"ann": ([x], [y])}])
    path = next((root / "train").iterdir())
    with refuses(f"{path}: user 'ann': {place}"):
        load_dataset("reddit", tmp_path)


def test_malformed_window_in_a_csv_file_is_refused_with_its_line(tmp_path):
    rows = ["character_id,x,y", f"a,{'x' * 80},b", "", f"a,{'x' * 79},b"]
    (tmp_path / "train.csv").write_text("\n".join(rows) + "\n")
    with refuses(f"{tmp_path / 'train.csv'} line 4 x", got="x" * 79):
        load_dataset("shakespeare", tmp_path)
