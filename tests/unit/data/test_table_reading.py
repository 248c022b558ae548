"""Tables in the forms of users and programs: their features and labels, and the errors about other tables."""

import bz2
import gzip
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.data import load_dataset
from fedraa.data.sources.files import read_csv
from fedraa.data.sources.table_columns import spell_csv
from fedraa.errors import RunWarning
from fedraa.objectives import make_objective

ROWS = 40
SEED = np.random.default_rng(7)
X = SEED.normal(size=ROWS).round(3)
CLASSES = np.arange(ROWS) % 2


def write(folder: Path, text: str | bytes, name: str = "t.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def table(header: str, row: str, **values: Any) -> str:
    """Return a table. In row i, each name in braces is replaced by the i-th of its values."""
    lines = [header]
    for i in range(ROWS):
        lines.append(row.format(**{name: column[i] for name, column in values.items()}, i=i, y=CLASSES[i]))
    return "\n".join(lines) + "\n"


def read(path: str, **options: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the features and the labels of all rows, in the order of the file."""
    data = read_csv(path, **options)
    # Test rows are the last fifth of a fixed shuffle, and both parts keep the order of the file.
    order = fl.rng.generator(0, "csv").permutation(ROWS)
    places = np.concatenate((np.sort(order[: ROWS * 4 // 5]), np.sort(order[ROWS * 4 // 5 :])))
    back = np.argsort(places)
    return np.concatenate((data.train[0], data.test[0]))[back], np.concatenate((data.train[1], data.test[1]))[back]


def scaled(values: Any) -> np.ndarray[Any, Any]:
    """Return the values without shift and scale, which do not matter here."""
    array = np.asarray(values, np.float64)
    array = array.reshape(len(array), -1)
    deviation = array.std(axis=0)
    return (array - array.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def check(path: str, columns: Any, labels: Any = CLASSES, **options: Any) -> None:
    x, y = read(path, **options)
    np.testing.assert_allclose(scaled(x), scaled(columns), atol=1e-4)
    np.testing.assert_array_equal(y, labels)


PLAIN = table("x,label", "{x},{y}", x=X)
NUMBERS = SEED.integers(1001, 2_000_000, ROWS)
PRICES = SEED.integers(-5000, 5000, ROWS)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        pytest.param(PLAIN.encode("utf-8-sig"), X, id="byte order mark"),
        pytest.param(PLAIN.replace("\n", "\r\n"), X, id="lines of Windows"),
        pytest.param(PLAIN.replace("\n", "\r"), X, id="lines of old Macs"),
        pytest.param(PLAIN.encode("utf-16"), X, id="UTF-16"),
        pytest.param(PLAIN.replace("\n", "\n\n  \n,\n", 5), X, id="blank lines"),
        pytest.param(table("x,label", "{x},{y},", x=X), X, id="trailing delimiter"),
        pytest.param(table("x,label,", "{x},{y},", x=X), X, id="trailing delimiter everywhere"),
        pytest.param("# made today, by hand\n\n" + PLAIN, X, id="comment above the header"),
        pytest.param(table("#x,label", "{x},{y}", x=X), X, id="header after #"),
        pytest.param(table(" x , label ", " {x} , {y} ", x=X), X, id="spaces"),
        pytest.param(table("x,note,label", '{x},"a\nb, ""c""",{y}', x=X), np.stack([X, 0 * X], 1), id="quoted newline"),
        pytest.param(table("x;label", "{x};{y}", x=X), X, id="semicolon"),
        pytest.param("sep=;\n" + table("x;label", "{x};{y}", x=X), X, id="hint of Excel"),
        pytest.param(table("x\tlabel", "{x}\t{y}", x=X), X, id="tab"),
        pytest.param(table("x|label", "{x}|{y}", x=X), X, id="bar"),
        pytest.param(table("x;label", "{x};{y}", x=[f"{x}".replace(".", ",") for x in X]), X, id="decimal comma"),
        pytest.param(table("x,label", '"{x:,}",{y}', x=NUMBERS), NUMBERS, id="thousands"),
        pytest.param(table("x,label", '"${x:,}",{y}', x=NUMBERS), NUMBERS, id="dollars"),
        pytest.param(table("x,label", '"-€ {x:,}.50",{y}', x=NUMBERS), -NUMBERS - 0.5, id="negative euros"),
        pytest.param(table("x,label", "{x}%,{y}", x=X), X, id="percent"),
        pytest.param(table("x,label", "{x} kg,{y}", x=X), X, id="unit"),
        pytest.param(table("x,label", "{x:e},{y}", x=X), X, id="scientific"),
        pytest.param(
            table("x,label", "{x},{y}", x=[f"({-p})" if p < 0 else f"{p}" for p in PRICES]), PRICES, id="brackets"
        ),
        pytest.param(
            table("x;label", "{x};{y}", x=[f"{n:,}".replace(",", ".") for n in NUMBERS]), NUMBERS, id="points"
        ),
        pytest.param(table("x,label", "{x},{y}", x=CLASSES == 1), CLASSES, id="booleans"),
        pytest.param(
            table("x,label", "{x},{y}", x=[["no", "yes"][c] for c in CLASSES]),
            np.stack([1 - CLASSES, CLASSES], 1),
            id="yes and no",
        ),
        pytest.param(table("x,c,label", "{x},3,{y}", x=X), np.stack([X, 0 * X], 1), id="constant"),
        pytest.param(table("x,Label", "{x},{y}", x=X), X, id="capital"),
    ],
)
def test_common_spellings_of_a_table_give_the_same_numbers(text: str | bytes, columns: Any, tmp_path: Path) -> None:
    check(write(tmp_path, text), columns)


def test_decimal_comma_in_one_column_makes_points_thousands_separators(tmp_path: Path) -> None:
    commas = [f"{x}".replace(".", ",") for x in X]
    thousands = 1000 * np.arange(1, ROWS + 1) + 7
    points = [f"{number // 1000}.007" for number in thousands]
    # A point may be a decimal point or a separator of thousands. The decimal commas of the other column decide.
    check(
        write(tmp_path, table("a;b;label", "{a};{b};{y}", a=commas, b=[*points[:-1], "41"])),
        np.stack([X, [*thousands[:-1], 41]], 1),
    )


@pytest.mark.parametrize("name", ["t.tsv", "t.txt", "T.CSV", "t.csv.gz", "t.csv.bz2"])
def test_table_is_recognised_by_its_file_name(name: str, tmp_path: Path) -> None:
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(Path(name).suffix, bytes)
    data = load_dataset(write(tmp_path, pack(PLAIN.encode()), name), None)
    assert isinstance(data, fl.FederatedDataset)
    np.testing.assert_array_equal(np.bincount(np.concatenate((data.train[1], data.test[1]))), [20, 20])


@pytest.mark.parametrize("header", ["", "Unnamed: 0", "id", "PassengerId", "row_number"])
def test_row_number_column_is_omitted_with_a_warning(header: str, tmp_path: Path) -> None:
    sorted_labels = np.sort(CLASSES)
    text = table(header + ",x,label", "{i},{x},{c}", x=X, c=sorted_labels)
    with pytest.warns(fl.RunWarning, match="is omitted") as caught:
        check(write(tmp_path, text), X, sorted_labels)
    assert len(caught) == 1


def test_model_does_not_learn_labels_from_the_row_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = [f"{i},{rng.normal():.3f},{int(i >= 200)}" for i in range(400)]
    path = write(tmp_path, "\n".join([",noise,label", *rows]))
    history = fl.run(
        dataset=path,
        method="fedavg",
        rounds=5,
        clients=2,
        hidden=(8,),
        lr=0.1,
        engine="local",
        quiet=True,
        out=tmp_path / "run",
    )
    # 80 test rows: by chance .5 with a deviation of .056; with the index as a feature 1.
    assert 0.3 < history.evals.accuracy.iloc[-1] < 0.7


def test_feature_that_counts_the_rows_stays_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(fl.RunWarning, match="'day' increases by 1 in each row"):
        check(write(tmp_path, table("day,label", "{i},{y}")), np.arange(ROWS))


@pytest.mark.parametrize(("header", "warns"), [("a,y,label", True), ("x,y,label", False), ("a,b,y", False)])
def test_feature_y_beside_a_label_is_kept_with_a_warning(
    header: str, warns: bool, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "a.csv").write_text(header + "\n" + "".join(f"{n % 7},{n % 3},{n % 2}\n" for n in range(20)))
    assert np.shape(read_csv(str(tmp_path / "a.csv")).train[0]) == (16, 2)
    assert any("'y' is a feature" in str(warning.message) for warning in recwarn) is warns


def test_each_word_of_the_training_rows_becomes_a_column(tmp_path: Path) -> None:
    path = write(tmp_path, "city,x,label\n" + "NA,1,no\nnull,2,yes\n?,3,no\n" * 4)
    test = write(tmp_path, "label,city,x\nyes,NA,2\nno,Rome,2\n", "u.csv")
    data = read_csv(path, test=test)
    x = data.train[0]
    assert x.shape == (12, 4)
    # Words are in alphabetical order: ?, NA, null.
    np.testing.assert_array_equal(x[:3, :3].argmax(1), [1, 2, 0])
    np.testing.assert_array_equal(data.train[1][:3], [0, 1, 0])
    np.testing.assert_array_equal(data.test[1], [1, 0])
    # Rome is in no training row, so that it is 0 in each column, as NA is in the first and the last.
    np.testing.assert_array_equal(data.test[0][1, [0, 2]], data.test[0][0, [0, 2]])
    assert data.test[0][1, 1] == x[1, 1]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([f"{y + 1}.0" for y in CLASSES], CLASSES),
        ([y + 1 for y in CLASSES], CLASSES),
        ([["yes", "NA"][y] for y in CLASSES], 1 - CLASSES),
        ([y == 1 for y in CLASSES], CLASSES),
        ([[" dog", "cat "][y] for y in CLASSES], 1 - CLASSES),
    ],
)
def test_labels_are_numbered_in_the_order_of_their_values(labels: Any, classes: Any, tmp_path: Path) -> None:
    check(write(tmp_path, table("x,label", "{x},{c}", x=X, c=labels)), X, classes)


def test_drop_omits_columns(tmp_path: Path) -> None:
    path = write(tmp_path, table("user,x,label", "u{i},{x},{y}", x=X))
    check(path, X, drop="user")
    data = load_dataset(f"csv({path!r}, drop=('user',))", None)
    assert isinstance(data, fl.FederatedDataset)
    assert data.train[0].shape == (32, 1)


def test_regression_targets_may_have_currency_signs(tmp_path: Path) -> None:
    path = write(tmp_path, table("x,label", '{x},"${n:,}"', x=X, n=NUMBERS))
    _, y = read(path, classes=False)
    np.testing.assert_array_equal(y[:, 0], NUMBERS)


def test_call_in_the_error_message_reads_the_table(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        table("age, sex, income", "{x}, {s}, {c}", x=X, s=["M", "F"] * 20, c=[["<=50K", ">50K"][y] for y in CLASSES]),
    )
    with refuses(f"dataset {path!r}: target") as mistake:
        load_dataset(path, None)
    shown = str(mistake.value).partition('--dataset "')[2].rstrip('"')
    assert shown == f"csv({path!r}, target='income')"
    data = load_dataset(shown, None)
    assert isinstance(data, fl.FederatedDataset)
    assert data.train[0].shape == (32, 3)


def test_numeric_label_is_refused_with_the_objective_that_reads_it(tmp_path: Path) -> None:
    path = write(tmp_path, table("x,label", "{i},{x}", x=X))
    with refuses(f"dataset {path!r}: column 'label'", "--objective regression"):
        load_dataset(path, None)
    data = load_dataset(path, None, make_objective("regression").targets)
    assert isinstance(data, fl.FederatedDataset)
    assert data.train[1].shape == (32, 1)


def test_clients_may_have_words_as_names(tmp_path: Path) -> None:
    path = write(tmp_path, table("x,label,hospital", "{x},{y},{h}", x=X, h=[f"Ward {i % 3}" for i in range(ROWS)]))
    data = read_csv(path, client="hospital")
    assert data.clients is not None
    assert set(data.clients) == {"Ward 0", "Ward 1", "Ward 2"}
    # Of 14, 13 and 13 rows, a fifth is rounded down to 2.
    assert data.train[0].shape == (34, 1)


@pytest.mark.parametrize(
    ("text", "field", "shown"),
    [
        pytest.param(table("a,b,label", "{i},1,{y},9"), "FILE line 2", "got 4;", id="longer rows"),
        pytest.param("a,b,label\n1,2,0\n3,1\n", "FILE line 3", "got 2;", id="shorter row"),
        pytest.param(PLAIN + "mean of all\n", "FILE line 42", "got 1;", id="footer"),
        pytest.param("", "FILE", "empty", id="empty file"),
        pytest.param(table("x   label", "{x}   {y}", x=X), "FILE", "'x   label'", id="spaces between"),
        pytest.param(table('"x" "label"', '"1" {y}'), "FILE", "semicolon", id="quotes and spaces"),
        pytest.param("a,label\n", "FILE", "no row", id="header only"),
        pytest.param("a,label\n,\n , \n", "FILE", "no row", id="blank rows"),
        pytest.param("a,label\n1,\u00e9\n".encode("utf-16")[:-1], "FILE", "not a text file", id="cut UTF-16"),
        pytest.param(b"\xef\xbb\xbfa,label\n1,\xe9\n", "FILE", "not a text file", id="wrong UTF-8 after its mark"),
        pytest.param('a,label\n"1,2\n', "FILE", "CSV", id="open quote"),
        pytest.param(b"a,label\n\0\0,1\n", "FILE", "not a text file", id="bytes"),
        pytest.param("a,a,label\n1,2,0\n", "FILE", "'a'", id="equal names"),
        pytest.param(table("5.1,3.5,setosa", "{x},1,{y}", x=X), "FILE", "5.1, 3.5, setosa", id="no header"),
        pytest.param(table("1,1,7", "{x},1,{y}", x=X), "FILE", "put a line with the names", id="equal numbers"),
        pytest.param(table(",x,label", "{x},1,{y}", x=X), "FILE", "column 1", id="unnamed feature"),
        pytest.param(table("x,label,target", "{x},{y},{y}", x=X), "target", "'label' and 'target'", id="two targets"),
        pytest.param(table("when,label", "2024-01-{i:02d},{y}"), "column 'when' line 2", "dates", id="ISO dates"),
        pytest.param(
            table("when,label", "{d}/2/2024 10:{i:02d},{y}", d=[1, 2] * 20), "column 'when' line 2", "dates", id="times"
        ),
        pytest.param(table("when,label", "Jan-20{i:02d},{y}"), "column 'when' line 2", "dates", id="months"),
        pytest.param(table("user,label", "u{i},{y}"), "column 'user'", "drop", id="ids"),
        pytest.param(table("x,label", "{v},{y}", v=["", *X[1:]]), "column 'x' line 2", "1 of 40", id="empty value"),
        pytest.param(table("x,label", "{v},{y}", v=["NA", *X[1:]]), "column 'x' line 2", "'NA'", id="NA"),
        pytest.param(
            table("x,label", "{v},{y}", v=["?"] * 30 + [*X[30:]]), "column 'x' line 2", "30 of 40", id="mostly ?"
        ),
        pytest.param(
            table("c,label", "{v},{y}", v=["", *"ab" * 19, "a"]), "column 'c' line 2", "1 of 40", id="empty word"
        ),
        pytest.param(
            table("x,label", "{x},{v}", x=X, v=["", *CLASSES[1:]]), "column 'label' line 2", "1 of 40", id="no label"
        ),
        pytest.param(
            table("x,label", "{x},{v}", x=X, v=["?", *CLASSES[1:]]), "column 'label' line 2", "'?'", id="label ?"
        ),
        pytest.param(table("x,label", "{x},3", x=X), "column 'label'", "3", id="one class"),
        pytest.param(table("x,label", "{x},w{i}", x=X), "column 'label'", "40", id="label of words"),
        pytest.param(table("x,label", "{v},{y}", v=["1", "two"] * 20), "column 'x' line 3", "'two'", id="half words"),
        pytest.param(
            table("x,label", "{v},{y}", v=["3%", "5", "7"] * 13 + ["2"]), "column 'x' line 2", "'3%'", id="some percent"
        ),
        pytest.param(table("x,label", "{v},{y}", v=["inf", *X[1:]]), "column 'x' line 2", "inf", id="infinity"),
        pytest.param(table("label", "{y}"), "FILE", "label", id="no feature"),
    ],
)
def test_error_about_an_unreadable_table_names_file_line_or_column(
    text: str | bytes, field: str, shown: str, tmp_path: Path
) -> None:
    path = write(tmp_path, text)
    place = f"dataset {path!r}: {field}"
    if field.startswith("FILE"):
        place = f"dataset: {field.replace('FILE', path)}"
    with refuses(place, shown) as caught:
        load_dataset(path, None)
    assert "\n" not in str(caught.value)


def test_label_that_occurs_only_in_test_rows_is_refused(tmp_path: Path) -> None:
    test = write(tmp_path, PLAIN.replace(",1\n", ",7\n"), "u.csv")
    with refuses(f"column 'label' line 3 of {test}", got=7):
        read_csv(write(tmp_path, PLAIN), test=test)


@pytest.mark.parametrize(
    ("options", "key"),
    [({"drop": "z"}, "drop"), ({"drop": ["x", "z"]}, "drop"), ({"client": "z"}, "client"), ({"target": "z"}, "target")],
)
def test_options_that_name_no_column_are_refused(options: Any, key: str, tmp_path: Path) -> None:
    with refuses(key, got="z"):
        read_csv(write(tmp_path, PLAIN), **options)


def test_error_about_a_target_in_a_table_without_header_asks_for_a_header(tmp_path: Path) -> None:
    with refuses("target", "put a line with the names", got="label"):
        read_csv(write(tmp_path, table("5.1,3", "{x},{y}", x=X)), target="label")


def test_error_about_an_unknown_option_lists_the_options(tmp_path: Path) -> None:
    path = str(write(tmp_path, PLAIN))
    with refuses("dataset", "'label'", "target", "client", "drop"):
        load_dataset(f"csv({path!r}, label='z')", None)


def test_options_that_contradict_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    with refuses("client", got="label"):
        read_csv(path, client="label")
    with refuses("drop", got="x"):
        read_csv(path, client="x", drop="x")
    with refuses("drop", got=3):
        read_csv(path, drop=3)  # type: ignore[arg-type]


def test_error_about_another_kind_of_path_shows_the_form_that_works(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "t.parquet")
    with refuses(f"dataset {path!r}", "to_csv"):
        load_dataset(path, None)
    with refuses(f"dataset {str(tmp_path)!r}", f"folder:{tmp_path}"):
        load_dataset(str(tmp_path), None)


def test_hint_quotes_a_path_with_a_quotation_mark_for_the_shell() -> None:
    path = "d i'r/t.csv"
    option = spell_csv(path, {"target": "a"})
    assert shlex.split(option) == ["--dataset", f"csv({path!r}, target='a')"]


def test_blank_rows_of_delimiters_change_neither_clients_nor_row_numbers(tmp_path: Path) -> None:
    text = table("id,client,x,label", "{i},{c},{x},{y}", c=[3, 5] * 20, x=X).replace("\n4,", "\n,,,,\n4,")
    with pytest.warns(RunWarning, match="'id' holds row numbers"):
        data = read_csv(write(tmp_path, text))
    assert {repr(client) for client in data.clients or ()} == {"3", "5"}
    with pytest.warns(RunWarning), refuses("column 'x' line 4, client 3", "empty"):
        read_csv(write(tmp_path, text.replace(f"2,3,{X[2]},", "2,3,,")))


def test_clients_with_leading_zeros_are_words(tmp_path: Path) -> None:
    clients = ["007", "7"] * 20
    path = write(tmp_path, table("x,who,label", "{x},{c},{y}", x=X, c=clients))
    assert set(read_csv(path, client="who").clients or ()) == {"007", "7"}
    plain = write(tmp_path, table("x,who,label", "{x},{c},{y}", x=X, c=[7, 10] * 20))
    assert set(read_csv(plain, client="who").clients or ()) == {7, 10}


@pytest.mark.parametrize("clients", [("1.1", "1.10"), ("7", "+7"), ("1e1", "10"), ("inf", "infinity")])
def test_clients_with_different_texts_of_one_number_are_different(clients: tuple[str, str], tmp_path: Path) -> None:
    path = write(tmp_path, table("x,client,label", "{x},{c},{y}", x=X, c=[*clients] * 20))
    assert set(read_csv(path).clients or ()) == set(clients)


def test_client_ids_near_2_to_63_stay_numbers(tmp_path: Path) -> None:
    ids = [2**63 - 2, 2**63 - 1]
    path = write(tmp_path, table("x,client,label", "{x},{c},{y}", x=X, c=ids * 20))
    assert set(read_csv(path).clients or ()) == set(ids)


def test_csv_prefix_reads_regression_targets_as_float32(tmp_path: Path) -> None:
    path = write(tmp_path, table("x,y", "{x},{v}", x=X, v=X + 1))
    data = load_dataset(f"csv:{path}", None, make_objective("regression").targets)
    assert data.train[1].dtype == np.float32


def test_damaged_compressed_table_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(PLAIN.encode()))
    # The first block of the compressed data then has a reserved type.
    packed[10] |= 0b110
    path = write(tmp_path, bytes(packed), "t.csv.gz")
    with refuses(f"dataset: {path}", "unpacked"):
        load_dataset(path, None)
