"""Replay checks bad clients: their failed tasks have no effect, and quarantined clients get no work."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

import fedraa as fl
from fedraa.client.trainer import Trainer
from fedraa.errors import Inconsistent
from fedraa.messages import Task, Update
from fedraa.testing.samples import make_vectors

Log = list[dict[str, Any]]
BAD = 1
SMALL: dict[str, Any] = {"engine": "local", "clients": 4, "hidden": (8,), "local_steps": 1, "quiet": True}
LENGTHS: dict[str, dict[str, Any]] = {
    "fed-raa": {"updates": 20},
    "fedbuff": {"updates": 8, "buffer_size": 3},
    "fedavg": {"rounds": 5},
}
LENGTHS |= {"fed-raa-sync": {"rounds": 5}, "heterofl": {"rounds": 5, "participation": "sample:3"}}


def fail(self: Trainer, task: Task, *arguments: Any) -> Update:
    raise KeyError("a label")


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    runs: dict[str, Path] = {}

    def of(method: str) -> Path:
        if method not in runs:
            train = Trainer.train
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Trainer, "train", lambda *a: fail(*a) if a[1].client == BAD else train(*a))
                runs[method] = tmp_path_factory.mktemp("run") / method
                fl.run(**SMALL | LENGTHS[method] | {"method": method}, dataset=make_vectors(), out=runs[method])
        return runs[method]

    return of


def line_numbers(log: Log, kind: str) -> list[int]:
    return [number for number, line in enumerate(log) if line["kind"] == kind]


def keep_bad_client(log: Log) -> str:
    """Let the second drop state that the client continues."""
    log[line_numbers(log, "drop")[1]]["action"] = "retry"
    return "action: got 'retry'; expected 'quarantined'"


def quarantine_early(log: Log) -> str:
    log[line_numbers(log, "drop")[0]]["action"] = "quarantined"
    return "action: got 'quarantined'; expected 'retry'"


def change_client(log: Log) -> str:
    log[line_numbers(log, "drop")[0]]["client"] = 3
    return "client: got 3; expected 1"


def change_time(log: Log) -> str:
    line = log[line_numbers(log, "drop")[1]]
    line["t"] = line["t"] / 2
    return r"\(drop\) t: "


def apply_dropped_update(log: Log) -> str:
    """Replace a drop with a commit, as if its update were applied."""
    number = line_numbers(log, "drop")[0]
    commit = log[line_numbers(log, "commit")[0]]
    log[number] = commit | {name: log[number][name] for name in ("seq", "t", "wall", "task", "client", "fragment")}
    return r"^events\.jsonl line \d+ \("


def give_quarantined_client_work(log: Log) -> str:
    """Give the quarantined client a task of another client."""
    last = line_numbers(log, "drop")[1]
    later = next(number for number in line_numbers(log, "dispatch") if number > last)
    log[later]["client"] = BAD
    return "client: got 1; "


def remove_drop(log: Log) -> str:
    """Remove a drop, as if its task were still in flight."""
    del log[line_numbers(log, "drop")[1]]
    for number, line in enumerate(log):
        line["seq"] = number
    return r"^events\.jsonl line \d+ \("


@pytest.mark.parametrize("method", LENGTHS)
def test_a_genuine_run_is_consistent(method: str, genuine: Callable[[str], Path]) -> None:
    assert ", 2 drop, " in fl.replay(genuine(method))


@pytest.mark.parametrize(
    "forge",
    [
        keep_bad_client,
        quarantine_early,
        change_client,
        change_time,
        apply_dropped_update,
        give_quarantined_client_work,
        remove_drop,
    ],
)
@pytest.mark.parametrize("method", LENGTHS)
def test_forged_run_is_inconsistent(
    method: str, forge: Callable[[Log], str], genuine: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(genuine(method), tmp_path / "copy"))
    events = directory / "events.jsonl"
    log = [json.loads(line) for line in events.read_text().splitlines()]
    why = forge(log)
    events.write_text("".join(json.dumps(line) + "\n" for line in log))
    with pytest.raises(Inconsistent, match=why):
        fl.replay(directory)


def test_forged_summary_is_inconsistent(genuine: Callable[[str], Path], tmp_path: Path) -> None:
    directory = Path(shutil.copytree(genuine("fedavg"), tmp_path / "copy"))
    summary = json.loads((directory / "summary.json").read_text())
    # The summary is typed as a mapping of objects.
    assert [entry["client"] for entry in summary["quarantined"]] == [BAD]  # type: ignore[attr-defined]
    (directory / "summary.json").write_text(json.dumps(summary | {"quarantined": []}))
    with refuses("summary.json quarantined", f"'client': {BAD}", got=[], error=Inconsistent):
        fl.replay(directory)
