"""A resumed run restores its partition.npz. Readers refuse damaged files of a run directory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

import fedraa as fl
from fedraa.errors import InputError
from fedraa.report.runs import load_groups
from fedraa.rundir.partition_file import read_partition
from fedraa.rundir.run_lock import interrupt_run

SMALL: dict[str, Any] = {"clients": 3, "hidden": (8,), "local_steps": 1, "quiet": True, "engine": "local"}


@pytest.fixture(scope="module")
def run_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("runs") / "run"
    fl.run(method="fedavg", rounds=1, out=out, **SMALL)
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture
def run(run_files: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in run_files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("x")])
def test_resume_restores_the_partition(run: Path, damage: Callable[[Path], object]) -> None:
    before = (run / "partition.npz").read_bytes()
    damage(run / "partition.npz")
    history = fl.resume(run, rounds=2)
    assert (run / "partition.npz").read_bytes() == before
    assert int(history.partition.sizes.sum()) == 1437
    assert "consistent" in fl.replay(run)


def test_directory_in_place_of_the_partition_is_refused_before_anything_is_removed(run: Path) -> None:
    (run / "partition.npz").unlink()
    (run / "partition.npz").mkdir()
    with refuses("partition", str(run / "partition.npz"), "directory", "remove"):
        fl.resume(run, rounds=2)
    assert (run / "summary.json").is_file()
    assert (run / "model.pt").is_file()
    with refuses("partition", str(run / "partition.npz"), "directory"):
        read_partition(run)


@pytest.mark.parametrize(("ended", "hint"), [(True, "copy"), (False, "resume")])
def test_hint_about_a_damaged_partition_works(ended: bool, hint: str, run: Path) -> None:
    write_text(run / "partition.npz")
    if not ended:
        (run / "summary.json").unlink()
    with refuses("partition", hint):
        read_partition(run)


def test_resume_of_an_ended_run_with_a_damaged_configuration_names_the_damage(run: Path) -> None:
    cut_off(run / "config.json")
    with refuses("run", "config.json", "JSON"):
        fl.resume(run)


def test_resume_leaves_an_undamaged_partition_as_it_is(run: Path) -> None:
    before = (run / "partition.npz").stat()
    fl.resume(run, rounds=2)
    after = (run / "partition.npz").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def write_text(path: Path) -> None:
    path.write_text("x")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [write_text, cut_off, flip_bit])
@pytest.mark.parametrize("ended", [True, False])
def test_report_of_a_run_with_a_damaged_partition_is_refused(
    ended: bool, damage: Callable[[Path], None], run: Path
) -> None:
    if not ended:
        (run / "summary.json").unlink()
    assert len(load_groups([run])) == 1
    damage(run / "partition.npz")
    with refuses("run", str(run), "damaged", "partition"):
        load_groups([run])


def test_report_of_a_copy_without_the_partition_is_accepted(run: Path) -> None:
    (run / "partition.npz").unlink()
    assert len(load_groups([run])) == 1


def test_read_partition_refuses_damaged_bytes_or_reads_the_same_rows(run: Path) -> None:
    path = run / "partition.npz"
    intact = path.read_bytes()
    expected = [rows.tolist() for rows in read_partition(run).test]
    refused = 0
    for place in range(0, len(intact), 13):
        path.write_bytes(intact[:place] + bytes([intact[place] ^ 0xFF]) + intact[place + 1 :])
        try:
            assert [rows.tolist() for rows in read_partition(run).test] == expected
        except InputError:
            refused += 1
    assert refused > len(intact) // 26


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("null", ("not a JSON object",)),
        ("{}", ("it lacks reason",)),
        ('{"reason": 3}', ("reason: got 3",)),
        ("{", ("not JSON",)),
    ],
)
def test_damaged_summary_is_refused(run: Path, content: str, names: tuple[str, ...]) -> None:
    (run / "summary.json").write_text(content)
    with refuses("run", "summary.json", *names) as caught:
        _ = fl.History(run).summary
    assert "Totals" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(("value", "names"), [(None, ("it lacks best_accuracy",)), ("x", ("best_accuracy: got 'x'",))])
def test_summary_with_a_wrong_metric_is_refused(run: Path, value: str | None, names: tuple[str, ...]) -> None:
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    del summary["best_accuracy"]
    path.write_text(json.dumps(summary | ({} if value is None else {"best_accuracy": value})))
    with refuses("run", "summary.json", *names):
        _ = fl.History(run).summary


@pytest.mark.parametrize("content", ["x", "[]", "{}", '{"format": 6}', '{"experiment": {}}'])
def test_damaged_configuration_is_refused_with_a_hint(run: Path, content: str) -> None:
    (run / "config.json").write_text(content)
    with refuses("run", "config.json") as caught:
        _ = fl.History(run).config
    assert caught.value.hint


@pytest.mark.parametrize("content", ["x\n", "step,t\n1,2\n"])
def test_damaged_evaluations_are_refused_with_a_hint(run: Path, content: str) -> None:
    (run / "evals.csv").write_text(content)
    with refuses("evals", "evals.csv") as caught:
        _ = fl.History(run).evals
    assert caught.value.hint


def test_folder_that_is_no_run_is_refused_with_a_hint(run: Path) -> None:
    with refuses("run", str(run.parent / "missing"), "config.json") as caught:
        fl.History(run.parent / "missing")
    assert "fedraa status" in caught.value.hint


def test_stop_of_a_run_that_no_process_writes_is_refused_with_a_hint(run: Path) -> None:
    with refuses("run", str(run)) as caught:
        interrupt_run(run, run / "events.jsonl")
    assert f"fedraa status {run}" in caught.value.hint
