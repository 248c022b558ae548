"""Read a table in a text file. The encoding, the delimiter and the header are detected."""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zlib
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fedraa.errors import InputError, locate_error
from fedraa.numbers import format_count
from fedraa.reading.regular_files import read_regular_file

DELIMITERS = ",;\t|"
DIVIDED_BY = "a comma, a semicolon, a tab or a bar"
EXCEL_HINT = re.compile(r"\"?sep=(?P<delimiter>[,;\t|])\"?(?=[\r\n])", re.IGNORECASE)
NO_HEADER_HINT = "the first line has numbers; put a line with the names of the columns before it"
PACKED = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
SNIFFED_ROWS = 200
# A C long on Windows has 32 bits.
MAX_FIELD_CHARACTERS = 2**31 - 1
SHOWN_NAMES = 20


@dataclass(frozen=True)
class TableFile:
    """The text of a table.

    Attributes:
        path: The file.
        rows: The text of the rows below the header, without blank rows. A blank row may consist of delimiters.
        lines: The number of the line in the file, from 1, at which each row begins.
        delimiter: The character between two fields.
        names: The names of the columns.
        width: The maximum number of fields of a row.
        keep_spaces: True if spaces at the start of a field are a part of its text. Quotes after them have no effect.
    """

    path: str
    rows: str
    lines: Sequence[int]
    delimiter: str
    names: tuple[str, ...]
    width: int
    keep_spaces: bool

    def frame(self, as_words: Collection[str] = ()) -> Any:
        """Return the rows as a pandas DataFrame, without unnamed empty columns. Its index has the lines of the rows.

        A column of numbers, or of true and false, is numeric. Any other column has text without surrounding spaces,
        and None for an empty field.

        Args:
            as_words: The names of columns that are text even if all values are numbers.
        """
        words = {place: object for place, name in enumerate(self.names) if name in as_words}
        # If a row has more fields than the header, the additional fields are empty, because such a row only ends with
        # additional delimiters.
        places = list(range(len(self.names)))
        frame = self._read_fields(places, dtype=words, na_values=[""], low_memory=False)
        # Importing pandas is slow, and workers do not need it.
        import pandas as pd

        for name in frame.columns:
            if pd.api.types.is_bool_dtype(frame[name]):
                frame[name] = frame[name].astype("int8")
            elif not pd.api.types.is_numeric_dtype(frame[name]):
                frame[name] = _strip_words(frame[name])
        empty = [name for name in frame.columns if is_unnamed(name) and frame[name].isna().all()]
        return frame.drop(columns=empty)

    def texts(self, names: Sequence[str]) -> Any:
        """Return some columns as a pandas DataFrame of text. Its index has the lines. An empty field is an empty text.

        Raises InputError if the table lacks a column.
        """
        for name in names:
            if name not in self.names:
                expected = f"the columns {', '.join(names)}"
                raise InputError(self.path, f"it has no column {name!r}", expected=expected)
        # Without `usecols`, pandas would make an object of every field of a wide table.
        places = [self.names.index(name) for name in names]
        return self._read_fields(places, dtype=str)[list(names)]

    def must_stay_text(self, name: str) -> bool:
        """Return True if numbers in the column `name` would lose a difference between two texts.

        Examples are `007`, which would equal `7`, and `1.10` beside `1.1`.
        """
        if name not in self.names:
            return False
        texts = self.texts([name])[name].str.strip()
        if texts.str.match(r"0\d").any():
            return True
        different = [text for text in texts.unique().tolist() if is_number(text)]
        return len({_to_number(text) for text in different}) < len(different)

    def _read_fields(self, places: list[int], **options: Any) -> Any:
        """Return the columns at these places, in their order in the file."""
        import pandas as pd

        frame = pd.read_csv(
            io.StringIO(self.rows, newline=""),
            sep=self.delimiter,
            header=None,
            names=list(range(self.width)),
            usecols=places,
            index_col=False,
            keep_default_na=False,
            skipinitialspace=not self.keep_spaces,
            **options,
        )
        frame.index = pd.Index(self.lines)
        return frame.set_axis([self.names[place] for place in frame.columns], axis=1)


def read_frame(field: str, path: Path) -> Any:
    """Return the rows of a table as a pandas DataFrame (see `TableFile.frame`). `field` begins the field of errors."""
    try:
        return open_table(str(path)).frame()
    except InputError as error:
        raise locate_error(error, field) from None


def row_text(frame: Any, place: int) -> str:
    """Return the fields of a row for an error, with commas between them. An empty field is an empty text."""
    fields = [frame[name].iloc[place] for name in frame.columns]
    return ",".join("" if is_empty(field) else str(field) for field in fields)


def is_empty(value: object) -> bool:
    """Return True for the value of an empty field in a DataFrame: None or NaN."""
    return value is None or value != value


@contextmanager
def _allow_long_fields() -> Iterator[None]:
    """Let the readers of `csv` accept fields of more than 131,072 characters during the block."""
    limit = csv.field_size_limit(MAX_FIELD_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


@_allow_long_fields()
def open_table(path: str, *, keep_spaces: bool = False) -> TableFile:
    """Read a table from a file. Spaces at the start of a field stay if `keep_spaces` is True, as `TableFile` describes.

    Raises InputError if the file is not a table. For example, a row and the header differ in length.
    """
    text = _read_text(path)
    hint = EXCEL_HINT.match(text)
    if hint is None:
        delimiter = _guess_delimiter(text)
    else:
        delimiter = hint["delimiter"]
        # The line break stays, so that the line numbers in errors are correct.
        text = text[hint.end() :]
    try:
        names, line, start, offset_lines = _find_header(text, delimiter, keep_spaces)
        if not names:
            raise InputError(path, "it is empty", expected="a header and rows")
        width = len(names)
        stream = io.StringIO(text, newline="")
        stream.seek(start)
        reader = _make_reader(stream, delimiter, keep_spaces)
        # The texts between blank rows, and the end of the last row.
        parts = []
        lines = array("q")
        end = start
        next_line = offset_lines + 1
        for row in reader:
            first_line = next_line
            next_line = offset_lines + reader.line_num + 1
            if _is_blank(row):
                parts.append(text[start:end])
                start = end = stream.tell()
                continue
            end = stream.tell()
            lines.append(first_line)
            width = max(width, len(row))
            if len(row) < len(names) or any(row[len(names) :]):
                raise _wrong_length(f"{path} line {first_line}", row, names, line)
    except csv.Error as error:
        problem = f"it cannot be read as CSV ({error})"
        raise InputError(path, problem, expected=f"columns divided by {DIVIDED_BY}") from None
    if len(names) == 1 and " " in names[0]:
        raise InputError(path, f"it has one column {names[0]!r}", expected=f"columns divided by {DIVIDED_BY}")
    rows = "".join([*parts, text[start:end]])
    if not rows:
        raise InputError(path, "it has no row below its header")
    named = tuple(name or f"Unnamed: {place}" for place, name in enumerate(names))
    for place, name in enumerate(named):
        if name in named[:place]:
            remedy = NO_HEADER_HINT if is_number(name) else "rename one of them"
            raise InputError(path, f"it has two columns {name!r}", hint=remedy)
    return TableFile(path, rows, lines, delimiter, named, width, keep_spaces)


def is_unnamed(name: str) -> bool:
    """Return True for the placeholder of a missing column name, such as `Unnamed: 3`."""
    return name.startswith("Unnamed: ") and name[len("Unnamed: ") :].isdecimal()


def list_names(names: Collection[Any]) -> str:
    """Return at most `SHOWN_NAMES` names as text for an error."""
    shown = ", ".join(str(name) for name in islice(names, SHOWN_NAMES))
    if len(names) > SHOWN_NAMES:
        return f"{shown}, ... ({len(names)} in all)"
    return shown


def _read_text(path: str) -> str:
    try:
        data = read_regular_file(Path(path))
    except FileNotFoundError:
        raise InputError(path, "there is no such file") from None
    except OSError as error:
        raise InputError(path, f"it cannot be read ({error.strerror or error})") from None
    unpack = PACKED.get(Path(path).suffix.lower())
    if unpack is not None:
        try:
            data = unpack(data)
        except (OSError, EOFError, lzma.LZMAError, ValueError, zlib.error) as error:
            raise InputError(path, f"it cannot be unpacked ({error})") from None
    return _decode_text(path, data)


def _decode_text(path: str, data: bytes) -> str:
    # Spreadsheets often write Windows-1252, which does not define five of the 256 bytes. A file with one of these five
    # bytes is read as latin-1.
    encodings = ["utf-8", "cp1252", "latin-1"]
    if data.startswith(codecs.BOM_UTF8):
        encodings = ["utf-8-sig"]
    elif data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings = ["utf-16"]
    for encoding in encodings:
        with suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            if "\0" not in text:
                return text
    raise InputError(path, "it is not a text file", expected="a table such as CSV")


def _make_reader(stream: io.StringIO, delimiter: str, keep_spaces: bool) -> Any:
    return csv.reader(stream, delimiter=delimiter, skipinitialspace=not keep_spaces, strict=True)


def _is_blank(row: list[str]) -> bool:
    return not any(field.strip() for field in row)


def _is_comment(row: list[str]) -> bool:
    return bool(row) and row[0].startswith("#")


def _first_rows(text: str, delimiter: str) -> Iterator[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in islice(reader, SNIFFED_ROWS):
            if not _is_blank(row) and not _is_comment(row):
                yield row
    except csv.Error:
        return


def _guess_delimiter(text: str) -> str:
    """Return the delimiter with which the largest share of the rows has as many fields as the header.

    The header must have at least two fields.
    """
    best, best_score = ",", (0.0, 1)
    for delimiter in DELIMITERS:
        rows = list(_first_rows(text, delimiter))
        if not rows or len(rows[0]) < 2:
            continue
        columns = len(rows[0])
        alike = sum(len(row) == columns for row in rows[1:])
        score = (alike / max(1, len(rows) - 1), columns)
        if score > best_score:
            best, best_score = delimiter, score
    return best


def _find_header(text: str, delimiter: str, keep_spaces: bool) -> tuple[list[str], int, int, int]:
    """Return the column names, the header's line number, and the position and line number of the header's end.

    Comments above the header are skipped. A line such as `#id,x,label` is the header if a row with numbers follows.
    """
    stream = io.StringIO(text, newline="")
    reader = _make_reader(stream, delimiter, keep_spaces)
    comment: tuple[list[str], int, int, int] | None = None
    for row in reader:
        if _is_blank(row):
            continue
        place = [field.strip() for field in row], reader.line_num, stream.tell(), reader.line_num
        if not _is_comment(row):
            is_data = any(is_number(field) for field in row)
            if comment is not None and is_data and len(comment[0]) == len(row) > 1:
                names = [comment[0][0].removeprefix("#").strip(), *comment[0][1:]]
                return names, *comment[1:]
            return place
        comment = place
    return [], 0, 0, 0


def is_number(text: str) -> bool:
    """Return True if `float` can convert the text."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _to_number(text: str) -> int | float:
    """Return the number in a text. An integer is exact."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _wrong_length(field: str, row: list[str], names: list[str], header_line: int) -> InputError:
    hint = "fill in the missing fields"
    if len(row) > len(names):
        hint = "name every column, and put a value that contains the delimiter in quotes"
    expected = f"{format_count(len(names), 'field')}, as the header in line {header_line} has ({list_names(names)})"
    return InputError(field, got=len(row), expected=expected, hint=hint)


def _strip_words(column: Any) -> Any:
    import pandas as pd

    codes, words = pd.factorize(column.astype(object), use_na_sentinel=True)
    values = [str(word).strip() or None for word in words]
    return pd.Series([None if code < 0 else values[code] for code in codes.tolist()], column.index, dtype=object)
