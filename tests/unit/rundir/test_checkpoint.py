"""Checkpoint files: a state is restored bit for bit, damage is refused, and nothing is unpickled."""

import errno
import io
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from refusals import refuses

from fedraa.errors import Damaged
from fedraa.rundir import checkpoint
from fedraa.rundir.atomic_files import replace_file, write_text
from fedraa.rundir.checkpoint import (
    MAGIC,
    Saver,
    State,
    load_latest,
    newest_first,
    read_state,
    write_state,
)
from fedraa.vectors.client_rows import ClientRows

ARRAYS = arrays.arrays(
    st.sampled_from(["f4", "f8", "i8", "?"]), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | ARRAYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
STATES = st.dictionaries(st.text(max_size=5), VALUES, max_size=5)


def as_bytes(state: State) -> bytes:
    stream = io.BytesIO()
    write_state(stream, state)
    return stream.getvalue()


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(STATES)
def test_state_is_restored_bit_for_bit(state: State) -> None:
    assert same(state, read_state(as_bytes(state)))


def test_shared_array_is_written_once_and_read_as_one() -> None:
    vector = np.arange(1000, dtype=np.float32)
    content = as_bytes({"a": vector, "tasks": [{"params": vector}, {"params": vector}]})
    back = read_state(content)
    assert len(content) < 2 * vector.nbytes
    assert back["a"] is back["tasks"][0]["params"] is back["tasks"][1]["params"]


def test_numpy_scalars_are_read_as_python_numbers() -> None:
    assert read_state(as_bytes({"count": np.int64(3), "rate": np.float64(0.1)})) == {"count": 3, "rate": 0.1}


@pytest.mark.parametrize("value", [np.array([object()]), {1, 2}, b"bytes"])
def test_value_that_needs_pickle_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        as_bytes({"value": value})


@given(STATES, st.data())
def test_damaged_byte_is_refused(state: State, data: st.DataObject) -> None:
    content = bytearray(as_bytes(state))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged):
        read_state(bytes(content))


@given(STATES, st.data())
def test_torn_file_is_refused(state: State, data: st.DataObject) -> None:
    content = as_bytes(state)
    with pytest.raises(Damaged):
        read_state(content[: data.draw(st.integers(0, len(content) - 1))])


@given(st.binary(max_size=200))
def test_file_of_another_format_is_refused(content: bytes) -> None:
    with pytest.raises(Damaged):
        read_state(content)
    with pytest.raises(Damaged):
        read_state(MAGIC + content)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "exploded",)

    for content in (pickle.dumps(Bomb()), MAGIC + pickle.dumps(Bomb())):
        with pytest.raises(Damaged):
            read_state(content)
    assert not (tmp_path / "exploded").exists()


def accept_any(state: State) -> None:
    """Accept every state: a check that never fails."""


def test_two_newest_checkpoints_are_kept_and_the_newest_is_read(tmp_path: Path) -> None:
    for step in (0, 5, 10):
        Saver().save(tmp_path / "checkpoints", step, {"step": step})
    assert [path.name for path in newest_first(tmp_path / "checkpoints")] == ["00000010.ckpt", "00000005.ckpt"]
    assert load_latest(tmp_path / "checkpoints", accept_any) == {"step": 10}


def test_newest_checkpoint_has_the_largest_step_also_if_it_has_more_digits(tmp_path: Path) -> None:
    for step in (99_999_998, 99_999_999, 100_000_000):
        Saver().save(tmp_path, step, {"step": step})
    assert [int(path.stem) for path in newest_first(tmp_path)] == [100_000_000, 99_999_999]
    assert load_latest(tmp_path, accept_any) == {"step": 100_000_000}


def test_copy_of_a_checkpoint_under_another_name_is_not_used(tmp_path: Path) -> None:
    Saver().save(tmp_path, 5, {"step": 5})
    (tmp_path / "00000005.ckpt").rename(tmp_path / "copy of 5.ckpt")
    for step in (10, 15):
        Saver().save(tmp_path, step, {"step": step})
    assert [path.name for path in newest_first(tmp_path)] == ["00000015.ckpt", "00000010.ckpt"]
    assert load_latest(tmp_path, accept_any) == {"step": 15}


def test_damaged_newest_checkpoint_is_deleted_and_the_previous_one_read(tmp_path: Path) -> None:
    for step in (5, 10):
        Saver().save(tmp_path, step, {"step": step})
    newest = tmp_path / "00000010.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    (tmp_path / "00000015.ckpt.partial").write_bytes(b"half")
    assert load_latest(tmp_path, accept_any) == {"step": 5}
    assert [path.name for path in tmp_path.iterdir()] == ["00000005.ckpt"]


def test_checkpoint_ahead_of_the_log_is_not_used(tmp_path: Path) -> None:
    for step in (5, 10):
        Saver().save(tmp_path, step, {"step": step})
    assert load_latest(tmp_path, lambda state: None if state["step"] < 10 else "it is ahead of the log") == {"step": 5}


def test_directory_without_a_usable_checkpoint_is_refused(tmp_path: Path) -> None:
    assert load_latest(tmp_path, accept_any) is None
    Saver().save(tmp_path, 5, {})
    with refuses("run", str(tmp_path), "00000005.ckpt: it is ahead"):
        load_latest(tmp_path, lambda state: "it is ahead of the log")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with replace_file(path) as stream:
            stream.write(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_full_disk_during_a_write_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill_disk)
    with pytest.raises(OSError, match="space") as caught:
        write_text(tmp_path / "file", "new")
    assert caught.value.filename == str(tmp_path / "file")


def test_directory_with_the_name_of_the_file_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_text(tmp_path / "file", "new")
    assert caught.value.filename == str(tmp_path / "file")


def test_write_does_not_follow_a_symbolic_link_of_the_partial_file(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (tmp_path / "file.partial").symlink_to(other)
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "file").is_symlink()
    assert not other.exists()


def test_large_checkpoint_has_the_state_at_its_save(tmp_path: Path) -> None:
    saver, params, sent = Saver(min_thread_bytes=1), np.zeros(1000, np.float32), np.ones(5, np.float32)
    sent.flags.writeable = False
    state: State = {"params": params, "list": [1], "tasks": [{"params": sent}, {"params": params[:]}]}
    saver.save(tmp_path, 1, state)
    params += 1
    state["list"].append(2)
    saver.wait()
    loaded = load_latest(tmp_path, lambda state: None)
    assert loaded is not None
    assert loaded["list"] == [1]
    assert not loaded["params"].any()
    assert loaded["params"] is loaded["tasks"][1]["params"]
    assert saver.seconds > 0


@pytest.mark.parametrize("in_memory", [2**30, 0])
def test_client_rows_are_written_without_a_copy(
    in_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows, in memory or in a file, change while the checkpoint waits to be written."""
    rows, changed = ClientRows(1000, 3, lambda: np.zeros(1000, np.float32), in_memory), Event()
    for client in range(3):
        rows[client][:] = client
    put = checkpoint._store_checkpoint

    def late(directory: Path, step: int, text: bytes, arrays: Sequence[np.ndarray]) -> None:
        assert any(np.shares_memory(array, before) for array in arrays)
        assert changed.wait(10)
        put(directory, step, text, arrays)

    monkeypatch.setattr(checkpoint, "_store_checkpoint", late)
    saver, before = Saver(min_thread_bytes=1), rows.peek_row(0)
    saver.save(tmp_path, 1, rows.state())
    rows[1][:] = 9
    changed.set()
    saver.wait()
    loaded = load_latest(tmp_path, lambda state: None)
    assert loaded is not None
    assert loaded["rows"][0][:, 0].tolist() == [0, 1, 2]
    assert rows.peek_row(1)[0] == 9


def test_error_of_a_checkpoint_is_raised_by_the_next_save(tmp_path: Path) -> None:
    saver, state = Saver(min_thread_bytes=1), {"params": np.zeros(10, np.float32)}
    (tmp_path / "file").write_text("")
    saver.save(tmp_path / "file", 1, state)
    # The type of the error depends on the file system.
    with pytest.raises(OSError):  # noqa: PT011
        saver.save(tmp_path, 2, state)
    saver.save(tmp_path, 3, state)
    saver.wait()
    assert [path.name for path in newest_first(tmp_path)] == ["00000003.ckpt"]
