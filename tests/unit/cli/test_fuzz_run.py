"""Damaged files of a run: every command succeeds, or reports the damage in one error line."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import REPLACEMENTS, add_quick_flags, fuzz, has_result_or_error, is_one_sentence, run_command, torn
from hypothesis import given
from hypothesis import strategies as st

from fedraa.cli.main import main
from fedraa.rundir.history import History

JSON = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers(), max_size=2)
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that has ended, with its last two checkpoints."""
    out = tmp_path_factory.mktemp("fuzz") / "run"
    assert main(["run", *add_quick_flags(["--updates", "6", "--checkpoint-every", "2", "--out", str(out)])]) == 0
    return out


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the paths of all values in a JSON tree, including inner nodes."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def change_tree(tree: Any, path: tuple[Any, ...], become: Callable[[dict[Any, Any], Any], None]) -> Any:
    """Return a copy of the tree in which `become` has changed the value at `path`."""
    copy = json.loads(json.dumps({"root": tree}))
    *way, last = ("root", *path)
    inner = copy
    for key in way:
        inner = inner[key]
    become(inner, last)
    return copy.get("root")


def check_everything(run: Path) -> None:
    """Assert that every command on a run directory has a result, reports an inconsistent log (1), or refuses it (2)."""
    for command in (["status"], ["stop"], ["replay"], ["profile"], ["resume", "--quiet"]):
        code, said = run_command([*command, str(run)])
        assert has_result_or_error(code, said), (command, code, said)


def check_report(run: Path) -> None:
    """Assert that a report of the run, and of it with other runs, is written or refused."""
    page = run.with_name("page.html")
    for flags in ([], ["--landscape"]):
        code, said = run_command(["report", str(run), "--out", str(page), *flags])
        assert has_result_or_error(code, said), (flags, code, said)


def check_replaced_files(whole: Path, scratch: Path, killed: bool, most: int | None) -> None:
    """Check every command on copies of a run in which one file is replaced by something that cannot be read."""
    names = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file()]
    cases = [(name, kind) for name in names for kind in REPLACEMENTS if not killed or name.name != "summary.json"]
    for place in np.random.default_rng(killed).permutation(len(cases))[:most]:
        name, kind = cases[place]
        run = copy_run(whole, scratch)
        if killed:
            (run / "summary.json").unlink()
        (run / name).unlink()
        REPLACEMENTS[kind](run / name)
        if not killed and most is None:
            check_report(run)
        check_everything(run)


@pytest.mark.parametrize("killed", [False, True])
def test_sampled_replaced_run_files_are_reported_or_harmless(killed: bool, whole: Path, tmp_path: Path) -> None:
    check_replaced_files(whole, tmp_path, killed, 7)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_all_replaced_run_files_are_reported_or_harmless(killed: bool, whole: Path, tmp_path: Path) -> None:
    check_replaced_files(whole, tmp_path, killed, None)


def test_report_to_an_unwritable_path_is_refused(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "folder", tmp_path / "file" / "page.html", Path("/proc/page.html")):
        code, said = run_command(["report", str(whole), "--out", str(out)])
        assert code == 2
        assert is_one_sentence(said), said


@fuzz(12)
@given(data=st.data())
@pytest.mark.parametrize("name", ["config.json", "events.jsonl", "summary.json", "profile.json"])
def test_other_values_in_run_files_are_reported_or_harmless(
    name: str, data: st.DataObject, whole: Path, tmp_path: Path
) -> None:
    run = copy_run(whole, tmp_path)
    lines = (run / name).read_text().splitlines() if name == "events.jsonl" else [(run / name).read_text()]
    number = data.draw(st.integers(0, len(lines) - 1))
    tree = json.loads(lines[number])
    path = data.draw(st.sampled_from(list(leaves(tree))))
    if path and data.draw(st.booleans()):
        tree = change_tree(tree, path, lambda inner, key: inner.pop(key))
    else:
        value = data.draw(JSON)
        tree = change_tree(tree, path, lambda inner, key: inner.__setitem__(key, value))
    lines[number] = json.dumps(tree)
    (run / name).write_text("\n".join(lines) + "\n")
    remove_summary_sometimes(run, data)
    check_everything(run)


@fuzz(15)
@given(data=st.data())
def test_damaged_run_files_are_reported_or_harmless(data: st.DataObject, whole: Path, tmp_path: Path) -> None:
    run = copy_run(whole, tmp_path)
    files = sorted(path for path in run.rglob("*") if path.is_file())
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)):
        path.write_bytes(data.draw(torn(path.read_bytes())))
    remove_summary_sometimes(run, data)
    check_everything(run)


def test_undamaged_run_replays_and_resumes_to_the_same_model(whole: Path, tmp_path: Path) -> None:
    run = copy_run(whole, tmp_path)
    assert run_command(["replay", str(run)]) == (0, "")
    (run / "summary.json").unlink()
    assert run_command(["resume", str(run), "--quiet"]) == (0, "")
    assert History(run).summary["model_sha256"] == History(whole).summary["model_sha256"]


def copy_run(whole: Path, to: Path) -> Path:
    run = to / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    return run


def remove_summary_sometimes(run: Path, data: st.DataObject) -> None:
    """Remove the summary, as if the run had been killed, or leave the run as it is."""
    if data.draw(st.booleans()):
        (run / "summary.json").unlink(missing_ok=True)
