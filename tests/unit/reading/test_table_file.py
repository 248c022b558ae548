"""The reader of tables: its memory, and the tables of options such as `--compute`."""

import csv
import tracemalloc
from pathlib import Path

import pytest
from refusals import refuses

from fedraa.reading.table_file import open_table, read_frame


def write(folder: Path, text: str) -> str:
    path = folder / "t.csv"
    path.write_text(text)
    return str(path)


def test_texts_of_one_column_need_no_memory_for_the_other_columns(tmp_path: Path) -> None:
    rows, width = 40, 400
    header = ",".join(["client", *(f"x{i}" for i in range(width))])
    file = open_table(write(tmp_path, "\n".join([header, *(f"{i}" + ",0.25" * width for i in range(rows))])))
    file.texts(["client"])
    tracemalloc.start()
    assert file.texts(["client"])["client"].tolist() == [str(i) for i in range(rows)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A text of four characters needs 45 bytes and a reference of 8 bytes.
    assert peak < rows * width * (45 + 8)


def test_quotes_after_kept_spaces_are_text(tmp_path: Path) -> None:
    path = write(tmp_path, 'user,text\n1, "so" it is\n,\n2, yes\n')
    assert open_table(path, keep_spaces=True).texts(["text"])["text"].tolist() == [' "so" it is', " yes"]
    with refuses(f"{path} line 2", got=3):
        open_table(write(tmp_path, 'user,text\n1, "a, b"\n'), keep_spaces=True)


@pytest.mark.parametrize(
    "text",
    ["compute,downlink\n0.5,2,\n1,4,\n", "compute,downlink\n0.5,2\n,,,\n1,4\n", "compute;downlink\n0.5;2\n1;4\n"],
)
def test_table_of_an_option_is_read_like_a_data_set(text: str, tmp_path: Path) -> None:
    frame = read_frame("compute", Path(write(tmp_path, text)))
    assert frame.to_dict("list") == {"compute": [0.5, 1], "downlink": [2, 4]}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("compute,downlink\n0.5,2,1\n1,4,2\n", " line 2"),
        ("compute,downlink\n0.5,2\n1,4,2\n", " line 3"),
        ("compute,downlink\n0.5,2\n1\n", " line 3"),
        (None, ""),
    ],
)
def test_error_of_a_table_names_the_option_the_file_and_the_line(text: str | None, line: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    if text is not None:
        write(tmp_path, text)
    with refuses(f"compute: {path}{line}"):
        read_frame("compute", path)


def test_long_field_is_read_and_the_limit_of_other_readers_stays(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    text = "a" * (limit + 1)
    file = open_table(write(tmp_path, f"label,text\n0,{text}\n1,b\n"))
    assert file.texts(["text"])["text"].tolist() == [text, "b"]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n\n1,2\n\n3,4\n",
        "# made by hand\n\na,b\n1,2\n3,4\n",
        "sep=,\na,b\n1,2\n,\n3,4\n",
        'a,b\n"1\n",2\n3,4\n',
        "a,b\r\n1,2\r\n3,4\r\n",
    ],
)
def test_rows_have_the_line_at_which_they_begin_in_the_file(text: str, tmp_path: Path) -> None:
    file = open_table(write(tmp_path, text))
    lines = text.splitlines()
    wanted = [number for number, line in enumerate(lines, 1) if line.startswith(("1,", '"1', "3,"))]
    assert file.frame().index.tolist() == file.texts(["b"]).index.tolist() == wanted
    assert file.texts(["b"])["b"].tolist() == ["2", "4"]
