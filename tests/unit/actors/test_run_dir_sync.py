"""The copy of a run directory can be resumed, independent of the time at which it was read."""

import shutil
from pathlib import Path

from refusals import refuses

from actors.cluster.run_dir_sync import RunDirSync, fill, read_changes, register_writer, write_all
from fedraa.errors import Unwritable


def contents(directory: Path) -> dict[str, str]:
    return {path.relative_to(directory).as_posix(): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_copy_follows_growing_logs_and_added_or_removed_checkpoints(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    here.mkdir()
    sync = RunDirSync(here)
    write_all(there, {"events.jsonl": b"1\n", "config.json": b"{}", "checkpoints/1.ckpt": b"a", "x.partial": b"-"})
    sync.apply(read_changes(there, sync.seen))
    assert contents(here) == {"events.jsonl": "1\n", "config.json": "{}", "checkpoints/1.ckpt": "a"}
    with (there / "events.jsonl").open("a") as log:
        log.write("2\n")
    (there / "checkpoints" / "1.ckpt").unlink()
    write_all(there, {"checkpoints/2.ckpt": b"b"})
    new = read_changes(there, sync.seen)
    # No byte is sent twice.
    assert (new.whole, new.tails) == ({"checkpoints/2.ckpt": b"b"}, {"events.jsonl": b"2\n"})
    sync.apply(new)
    assert contents(here) == {"events.jsonl": "1\n2\n", "config.json": "{}", "checkpoints/2.ckpt": "b"}


def test_log_of_a_new_server_replaces_a_longer_local_log(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    write_all(here, {"events.jsonl": b"1\n2\n3\n"})
    write_all(there, {"events.jsonl": b"1\n2b\n"})
    RunDirSync(here).apply(read_changes(there, {}))
    assert contents(here) == {"events.jsonl": "1\n2b\n"}


def test_the_files_of_other_programs_are_neither_removed_nor_replaced(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    write_all(here, {"events.jsonl": b"1\n", "SHA256SUMS": b"-", "mine.csv": b"1\n", "failure.txt": b"-"})
    sync = RunDirSync(here)
    sync.seen = fill(there, sync.read())
    write_all(here, {"mine.csv": b"1\n2\n", "new.csv": b"1\n"})
    (here / "failure.txt").unlink()
    for name in ("SHA256SUMS", "failure.txt"):
        (there / name).unlink()
    (there / "events.jsonl").write_text("")
    sync.apply(read_changes(there, sync.seen))
    assert contents(here) == {"events.jsonl": "", "mine.csv": "1\n2\n", "new.csv": "1\n"}


def test_copy_into_a_removed_directory_fails_as_unwritable(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    write_all(there, {"events.jsonl": b"1\n"})
    sync = RunDirSync(here)
    with refuses(str(here / "events.jsonl"), error=Unwritable):
        sync.apply(read_changes(there, sync.seen))
    assert sync.seen == {}
    with refuses(str(here / "events.jsonl"), error=Unwritable), register_writer(here):
        raise AssertionError("it cannot be entered")


def test_run_directory_that_is_removed_during_the_run_raises_no_other_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with register_writer(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")


def test_unused_run_directory_is_left_empty(tmp_path: Path) -> None:
    with register_writer(tmp_path):
        assert sorted(contents(tmp_path)) == ["events.jsonl", "writer"]
        assert RunDirSync(tmp_path).read() == {"events.jsonl": b""}
    assert contents(tmp_path) == {}
