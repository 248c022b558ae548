"""Any file of data: it is read, or the command exits with code 2 and one error line, and writes nothing."""

import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import QUICK, fuzz, is_one_sentence, replace_file, run_command, torn
from hypothesis import given
from hypothesis import strategies as st

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
DTYPES = st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u1", "?", "U3", "c8", "M8[s]"])


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """Return archives of arrays that are nearly right, whole or truncated."""
    rows, columns = draw(st.integers(0, 12)), draw(st.sampled_from([(), (4,), (3, 2), (1, 8, 8), (0,)]))
    arrays: dict[str, Any] = {}
    for name in draw(st.sets(st.sampled_from(ARRAYS), min_size=3)):
        kind = draw(DTYPES) if draw(st.booleans()) else ("f4" if name[0] == "x" else "i8")
        shape = (rows, *columns) if name[0] == "x" else (rows + draw(st.integers(0, 1)),)
        values = np.arange(int(np.prod(shape))).reshape(shape) % draw(st.integers(1, 5))
        arrays[name] = values.astype(kind)
        if kind[0] == "f" and values.size and draw(st.booleans()):
            arrays[name].flat[0] = draw(st.sampled_from([np.nan, np.inf, -1.0]))
    stream = BytesIO()
    np.savez(stream, **arrays)
    return draw(torn(stream.getvalue()))


@fuzz(25)
@given(content=archives() | st.binary(max_size=60))
@pytest.mark.usefixtures("runs_are_skipped")
def test_arbitrary_npz_file_is_accepted_or_exits_with_code_2(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    flags = ["--dataset", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run")]
    code, said = run_command(["run", *QUICK, *flags])
    assert (code == 0 and said == "") or (code == 2 and is_one_sentence(said)), (code, said)
    assert not (tmp_path / "run").exists()


def idx(array: "np.ndarray[Any, Any]", kind: int = 8) -> bytes:
    """Return bytes in the format of MNIST's files: type, dimensions, sizes, values."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, kind, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, rows in (("train", 40), ("t10k", 20)):
        images = rng.integers(0, 255, (rows, 28, 28)).astype(np.uint8)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(idx((np.arange(rows) % 10).astype(np.uint8)))
    return raw


MNIST: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "cut in its header": lambda content: content[:6],
    "another type": lambda content: content[:2] + b"\x0d" + content[3:],
    "no type": lambda content: content[:2] + b"\x07" + content[3:],
    "more dimensions": lambda content: content[:3] + b"\x07" + content[4:],
    "no dimension": lambda content: content[:3] + b"\x00" + content[4:],
    "a huge size": lambda content: content[:4] + b"\xff\xff\xff\xff" + content[8:],
    "fewer": lambda content: content[:4] + (10).to_bytes(4, "big") + content[8:],
    "none": lambda content: content[:4] + bytes(4) + content[8:],
    "other bytes": lambda content: b"\x80\x04" + content,
}


@pytest.mark.usefixtures("runs_are_skipped")
def test_damaged_mnist_file_exits_with_code_2(mnist: Path, tmp_path: Path) -> None:
    flags = ["--dataset", "mnist", "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "run")]
    assert run_command(["run", *QUICK, *flags]) == (0, "")
    # Otherwise the damaged file would be downloaded again.
    (tmp_path / "data").chmod(0o555)
    for number, path in enumerate(sorted(mnist.iterdir())):
        content = path.read_bytes()
        for what, damage in list(MNIST.items())[number % 2 :: 2]:
            path.write_bytes(damage(content))
            code, said = run_command(["run", *QUICK, *flags])
            assert code == 2, (path.name, what)
            assert is_one_sentence(said), (path.name, what, said)
        for what in replace_file(path) if number == 1 else ():
            code, said = run_command(["run", *QUICK, *flags])
            assert code == 2, (path.name, what)
            assert is_one_sentence(said), (path.name, what, said)
        path.write_bytes(content)
    (tmp_path / "data").chmod(0o755)


ARRAY_HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (100000000, 100), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 'x'), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }",
    "{'descr': 5, 'fortran_order': 3, 'shape': 7, }",
    "(" * 5000,
    "",
]


@pytest.mark.parametrize("head", ARRAY_HEADERS)
@pytest.mark.usefixtures("runs_are_skipped")
def test_npz_file_with_a_wrong_array_header_exits_with_code_2(head: str, tmp_path: Path) -> None:
    text = (head + "\n").encode()
    array = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name in ARRAYS:
            archive.writestr(f"{name}.npy", array)
    code, said = run_command(["run", *QUICK, "--dataset", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run")])
    assert code == 2
    assert is_one_sentence(said), said
