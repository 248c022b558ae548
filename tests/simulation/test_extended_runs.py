"""An extended run equals a run that had the larger limit from the start."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from equal_runs import lines, same_run
from refusals import refuses
from torch import nn

import fedraa
from benchmarks.system.killing import KillAt, Killed
from fedraa import Experiment, History, replay, resume, run
from fedraa.client.trainer import Trainer
from fedraa.engine import local_engine
from fedraa.engine.build import build_run
from fedraa.engine.loop import Loop
from fedraa.engine.resume import extend_limits, rebuild_run
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import RunWarning
from fedraa.messages import Task, Update
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, SUMMARY

SMALL: dict[str, Any] = {"engine": "local", "hidden": (8,), "clients": 4, "local_steps": 2, "seed": 5}
SHORT_TIME = 0.06


def same_run_and_config(directory: Path, other: Path) -> None:
    same_run(directory, other)
    ours, theirs = History(directory), History(other)
    for key in ("method", "resolved"):
        assert ours.config[key] == theirs.config[key]
    assert ours.experiment.model_copy(update={"out": None}) == theirs.experiment.model_copy(update={"out": None})


@pytest.mark.parametrize(
    ("method", "before", "after"),
    [
        # The last evaluation is between two regular evaluations.
        ("fed-raa", {"updates": 13, "eval_every": 5}, {"updates": 29}),
        ("fed-raa", {"updates": 15, "eval_every": 5}, {"updates": 29}),
        ("fed-raa", {"updates": 15, "checkpoint_every": 5}, {"updates": 30}),
        ("fed-raa", {"time": SHORT_TIME, "eval_every": 3}, {"time": 2 * SHORT_TIME}),
        ("fed-raa", {"time": SHORT_TIME, "checkpoint_every": 1, "eval_every": 1}, {"time": 2 * SHORT_TIME}),
        ("fed-raa", {"updates": 40, "target_accuracy": 0.15}, {"target_accuracy": 0.3}),
        ("fed-raa", {"updates": 10, "time": 9.0}, {"updates": 20, "time": 10.0}),
        ("fedbuff", {"updates": 3, "buffer_size": 2}, {"updates": 8}),
        ("fedavg", {"rounds": 3, "eval_every": 2}, {"rounds": 7}),
        ("scaffold", {"rounds": 3, "checkpoint_every": 2}, {"rounds": 6}),
        ("fedrolex", {"time": 0.2}, {"time": 0.5}),
        ("ram-fed", {"rounds": 4}, {"rounds": 5}),
    ],
)
def test_extended_run_equals_a_run_with_the_larger_limit(
    method: str, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    run(Experiment(method=method, **SMALL, **before, out=tmp_path / "short"))
    run(Experiment(method=method, **SMALL, **before | after, out=tmp_path / "long"))
    assert len(lines(tmp_path / "long")) > len(lines(tmp_path / "short"))
    resume(tmp_path / "short", **after)
    same_run_and_config(tmp_path / "short", tmp_path / "long")
    assert "consistent (" in replay(tmp_path / "short")


def test_extended_run_that_keeps_values_of_the_first_limit_gives_a_warning(tmp_path: Path) -> None:
    flags: dict[str, Any] = {**SMALL, "method": "padamfed"}
    fixed = {"override": {"update.auxiliary.rounds": 9}}
    digests: dict[tuple[str, bool], str] = {}
    for is_fixed, more in ((False, {}), (True, fixed)):
        directory = run(**flags, **more, rounds=2, out=tmp_path / f"short {is_fixed}").directory
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RunWarning)
            digests["extended", is_fixed] = resume(directory, rounds=4).summary["model_sha256"]
        assert len(caught) == (not is_fixed)
        long = run(**flags, **more, rounds=4, out=tmp_path / f"long {is_fixed}")
        digests["long", is_fixed] = long.summary["model_sha256"]
    assert digests["extended", True] == digests["long", True]
    assert digests["extended", False] != digests["long", False]


def test_run_can_be_extended_several_times(tmp_path: Path) -> None:
    directory = run(Experiment(**SMALL, updates=5, eval_every=3, out=tmp_path / "short")).directory
    for updates in (6, 7, 11):
        resume(directory, updates=updates)
    same_run_and_config(directory, run(Experiment(**SMALL, updates=11, eval_every=3, out=tmp_path / "long")).directory)


def test_extended_run_does_not_train_a_task_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = run(Experiment(**SMALL, updates=20, out=tmp_path / "short")).directory
    committed = {line["task"] for line in lines(directory) if line["kind"] == "commit"}
    trained: list[int] = []
    train = Trainer.train

    def counted(self: Trainer, task: Task, *shard: Any) -> Update:
        trained.append(task.id)
        return train(self, task, *shard)

    monkeypatch.setattr(Trainer, "train", counted)
    resume(directory, updates=24)
    later = {line["task"] for line in lines(directory) if line["kind"] == "commit"} - committed
    assert len(later) == 4
    # Tasks that are due next may also be trained, but no task is trained twice.
    assert later <= set(trained)
    assert not committed & set(trained)
    assert len(trained) == len(set(trained))


def test_killed_extension_can_be_resumed(tmp_path: Path) -> None:
    directory = run(Experiment(**SMALL, updates=7, eval_every=3, out=tmp_path / "short")).directory
    with pytest.raises(Killed):
        resume(directory, updates=15, callbacks=[KillAt(10)])
    assert History(directory).state == "interrupted"
    assert not (directory / "model.pt").exists()
    resume(directory)
    same_run_and_config(directory, run(Experiment(**SMALL, updates=15, eval_every=3, out=tmp_path / "long")).directory)


def test_run_whose_limits_another_process_changes_before_the_start_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run(Experiment(**SMALL, updates=5, out=tmp_path / "run")).directory
    before = lines(directory)

    def extend_twice(directory: Path, spec: RunSpec) -> None:
        extend_limits(directory, spec)
        extend_limits(directory, build_run(Experiment(**SMALL, updates=12, out=directory)))

    monkeypatch.setattr(local_engine, "extend_limits", extend_twice)
    with refuses("run", got=directory):
        resume(directory, updates=9)
    assert lines(directory) == before
    assert resume(directory).summary["steps"] == 12
    assert "consistent (" in replay(directory)


def test_extension_that_cannot_start_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    """The limits were written before the engine was ready, so a typing error removed the summary and the model."""
    directory = run(Experiment(**SMALL, updates=5, out=tmp_path / "run")).directory
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with refuses("address"):
        resume(directory, updates=9, engine="ray", address="127.0.0.1:1")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    assert resume(directory, updates=9).summary["steps"] == 9


def test_interrupted_run_can_be_extended(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(Experiment(**SMALL, updates=7, checkpoint_every=3, out=tmp_path / "short"), callbacks=[KillAt(4)])
    resume(tmp_path / "short", updates=15)
    long = run(Experiment(**SMALL, updates=15, checkpoint_every=3, out=tmp_path / "long")).directory
    same_run_and_config(tmp_path / "short", long)


def test_extended_run_without_a_checkpoint_restarts_and_ends_the_same(tmp_path: Path) -> None:
    directory = run(Experiment(**SMALL, updates=7, eval_every=3, out=tmp_path / "short")).directory
    for path in (directory / CHECKPOINTS).iterdir():
        path.unlink()
    resume(directory, updates=9)
    same_run_and_config(directory, run(Experiment(**SMALL, updates=9, eval_every=3, out=tmp_path / "long")).directory)


def test_place_of_execution_may_change_before_an_extension(tmp_path: Path) -> None:
    directory = run(Experiment(**SMALL, updates=5, out=tmp_path / "run")).directory
    spec = rebuild_run(directory, None, None, {"engine": "ray", "workers": 2}, trust=False)
    assert (spec.experiment.engine, spec.experiment.workers) == ("ray", 2)
    # Most options of a run on Ray have no effect on the engine local.
    config = directory / CONFIG
    config.write_text(
        config.read_text().replace('"engine": "local"', '"engine": "ray"').replace('"workers": null', '"workers": 2')
    )
    assert rebuild_run(directory, None, None, {}, trust=False).experiment.workers == 2
    assert rebuild_run(directory, None, None, {"engine": "local"}, trust=False).experiment.workers == 2
    with refuses("placement", "engine local", got="spread"):
        rebuild_run(directory, None, None, {"engine": "local", "placement": "spread"}, trust=False)
    resume(directory, updates=9, engine="local", device="cpu")
    same_run(directory, run(Experiment(**SMALL, updates=9, out=tmp_path / "long")).directory)


@pytest.mark.parametrize(
    ("flags", "fields", "field", "name"),
    [
        ({"updates": 5}, {}, "run", "--updates"),
        ({"updates": 5}, {"updates": 5}, "updates", "got 5"),
        ({"updates": 5}, {"updates": 0}, "updates", "got 0"),
        ({"updates": 5}, {"updates": None}, "updates", "got None"),
        ({"updates": 5, "time": 9.0}, {"time": None}, "time", "more than 9"),
        ({"updates": 5, "target_accuracy": 0.99}, {"target_accuracy": None}, "target_accuracy", "more than 0.99"),
        ({"updates": 5}, {"rounds": 9}, "rounds", "--updates 9"),
        ({"updates": 5}, {"time": 9.0}, "time", "got 9.0"),
        ({"updates": 5, "time": 9.0}, {"time": 10.0}, "run", "--updates or --rounds"),
        ({"updates": 5}, {"target_acuracy": 1}, "target_acuracy", "target_accuracy"),
        ({"updates": 5}, {"updates": 9, "lr": 0.2}, "lr", "the run was started without it"),
        ({"updates": 5}, {"updates": 9, "out": "elsewhere"}, "out", "elsewhere"),
    ],
)
def test_run_that_cannot_be_extended_is_refused_and_unchanged(
    flags: dict[str, Any], fields: dict[str, Any], field: str, name: str, tmp_path: Path
) -> None:
    directory = run(Experiment(**SMALL, **flags, out=tmp_path / "run")).directory
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=rf"^{field}: .*{name}"):
        resume(directory, **fields)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_run_stopped_after_its_limit_can_be_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collect = Loop._collect_evaluation

    def collect_and_stop(loop: Loop, timeout: float) -> bool:
        if loop.server.step == 7:
            loop._stop_request.set()
        return collect(loop, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_collect_evaluation", collect_and_stop)
        with pytest.raises(KeyboardInterrupt):
            run(Experiment(**SMALL, updates=7, eval_every=3, out=tmp_path / "short"))
    assert lines(tmp_path / "short")[-1]["kind"] == "eval"
    resume(tmp_path / "short", updates=9)
    same_run_and_config(
        tmp_path / "short", run(Experiment(**SMALL, updates=9, eval_every=3, out=tmp_path / "long")).directory
    )


def test_resume_without_the_model_object_names_the_argument(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    given = {name: value for name, value in SMALL.items() if name != "hidden"}
    directory = run(Experiment(**given, updates=5, out=tmp_path / "own"), model=net).directory
    assert History(directory).config["given"] == ["model"]
    with refuses("run", f"fedraa.resume({str(directory)!r}, model=...)", got=directory):
        resume(directory, updates=9)
    fresh = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    assert resume(directory, model=fresh, updates=9).summary["steps"] == 9
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))
    with refuses("run", got=directory):
        resume(directory, model=other, updates=12)


def test_resume_names_components_whose_script_is_missing(tmp_path: Path) -> None:
    directory = run(Experiment(**SMALL, updates=5, out=tmp_path / "own")).directory
    config = json.loads((directory / CONFIG).read_text())
    config["experiment"] |= {"scheduler": "__main__:LowestLoss(patience=3)", "model": "notes.<locals>:net"}
    config["given"] = ["dataset"]
    (directory / CONFIG).write_text(json.dumps(config))
    (directory / SUMMARY).unlink()
    with refuses("run", "__main__:LowestLoss", "dataset=..., scheduler=...)", got=directory):
        fedraa.resume(directory)
    with refuses("scheduler", "'__main__:LowestLoss(patience=3)'", got="gre-raa"):
        fedraa.resume(directory, scheduler="gre-raa", dataset=object())
