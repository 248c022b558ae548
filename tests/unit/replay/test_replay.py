"""Genuine runs replay; a log with one thing wrong does not, and the message names the line."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedraa import Experiment, run
from fedraa.api import resume
from fedraa.callbacks import Callback, Event
from fedraa.callbacks.callback_list import CallbackList
from fedraa.cli.main import main
from fedraa.engine.build import build
from fedraa.engine.executor import LocalExecutor
from fedraa.engine.session import RunSession
from fedraa.errors import Inconsistent
from fedraa.messages import Fault, Update
from fedraa.methods.catalog import METHODS
from fedraa.replay import replay

ASYNCHRONOUS = [name for name, method in METHODS.items() if method.asynchronous]
BUFFERED = [name for name in ASYNCHRONOUS if METHODS[name].path("buffer_size") and METHODS[name].update.per_step > 1]
WAITING = ("ace", "ringmaster", "ringleader")  # not every arrival is an update, or part of one
SYNCHRONOUS = [name for name, method in METHODS.items() if not method.asynchronous]
SMALL = {"engine": "local", "hidden": (20,), "clients": 5, "local_epochs": 1, "quiet": True}
Log = list[dict[str, Any]]


def small(method: str, out: Path, **flags: Any) -> Experiment:
    if method in BUFFERED:
        flags = {"buffer_size": 2, "updates": 20} | flags
    length = {} if "time" in flags else {"updates": 40} if method in ASYNCHRONOUS else {"rounds": 6}
    return Experiment(**(SMALL | length | {"method": method, "out": out} | flags))


def read(directory: Path) -> Log:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def write(directory: Path, log: Log) -> None:
    (directory / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of one finished run per method; staleness matters in the asynchronous ones."""
    runs: dict[str, Path] = {}

    def of(method: str) -> Path:
        if method not in runs:
            out = tmp_path_factory.mktemp("run") / method
            flags: dict[str, Any] = {"staleness": "polynomial"} if METHODS[method].path("staleness") else {}
            if method in WAITING:
                flags["updates"] = 20
            runs[method] = run(small(method, out, eval_every=3 if method in ASYNCHRONOUS else 2, **flags)).directory
        return runs[method]

    return of


@pytest.fixture
def copy(genuine: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    def of(method: str) -> Path:
        return Path(shutil.copytree(genuine(method), tmp_path / "copy"))

    return of


@pytest.mark.parametrize("method", [*ASYNCHRONOUS, *SYNCHRONOUS])
def test_genuine_run_is_consistent(method: str, genuine: Callable[[str], Path]) -> None:
    commits = 40 if method in ASYNCHRONOUS else 6 * 5
    if method in WAITING:
        commits = sum(line["kind"] == "commit" for line in read(genuine(method)))
        assert commits > 20
    assert f"{commits} commit" in replay(genuine(method))


@pytest.mark.parametrize("participation", ["sample:2", "bernoulli:0.4"])
@pytest.mark.parametrize("method", ["fedavg", "heterofl"])
def test_cohorts_are_those_of_the_seed(method: str, participation: str, tmp_path: Path) -> None:
    directory = run(small(method, tmp_path / "run", participation=participation, checkpoint_every=2)).directory
    assert "3 checkpoint" in replay(directory)
    log = read(directory)
    line = [line for line in log if line["kind"] == "dispatch"][-1]
    line["client"] = (line["client"] + 1) % 5
    write(directory, log)
    with pytest.raises(Inconsistent, match=rf"line {line['seq'] + 1} \(dispatch\): client is"):
        replay(directory)


@pytest.mark.parametrize("method", ["fed-raa", "fed-raa-random", "fedasync", "fed-raa-sync", "fedavg"])
def test_wall_clock_run_is_consistent(method: str, tmp_path: Path) -> None:
    assert "consistent" in replay(run(small(method, tmp_path / "run", clock="wall", time_scale=0.02)).directory)


@pytest.mark.parametrize(
    ("reason", "flags"),
    [
        ("time", {"time": 0.1}),
        ("time", {"time": 0.01}),
        ("time", {"time": 1.0, "clock": "wall", "time_scale": 0.1}),
        ("accuracy", {"target_accuracy": 0.5, "eval_every": 4}),
        ("accuracy", {"target_accuracy": 0.01}),
        ("accuracy", {"target_accuracy": 0.5, "clock": "wall", "time_scale": 0.02, "updates": 400}),
        ("steps", {"eval_every": 7, "jitter": 0.0}),
        ("steps", {"updates": 1, "sam": 0.05, "local_steps": 3}),
    ],
)
def test_every_ending_is_consistent(reason: str, flags: dict[str, Any], tmp_path: Path) -> None:
    assert f"ended by {reason}" in replay(run(small("fed-raa", tmp_path / "run", **flags)).directory)


def test_time_that_is_up_before_the_last_evaluation_began(tmp_path: Path) -> None:
    """The model of the last update is evaluated as of that update, however late that was begun."""

    class Slow(Callback):
        def on_commit(self, event: Event) -> None:
            time.sleep(0.6)

    directory = tmp_path / "run"
    flags: dict[str, Any] = {"clock": "wall", "time": 0.5, "time_scale": 0.02, "eval_every": 1}
    run(small("fed-raa", directory, **flags), callbacks=[Slow()])
    assert "1 commit, " in replay(directory)
    (last,) = (line for line in read(directory) if line["kind"] == "eval" and line["step"] == 1)
    assert last["t"] < 0.5


def test_interrupted_and_resumed_run_is_consistent(tmp_path: Path) -> None:
    stop = threading.Event()

    class StopAt7(Callback):
        commits = 0

        def on_commit(self, event: Event) -> None:
            self.commits += 1
            if self.commits == 7:
                stop.set()

    spec = build(small("fed-raa", tmp_path))
    assert not RunSession(spec, tmp_path, local_pool(spec), stop, CallbackList([StopAt7()])).execute()
    assert "consistent so far, but the run has not ended" in replay(tmp_path)
    assert "40 commit" in replay(resume(tmp_path).directory)


def test_devices_in_physical_units_with_little_memory_are_consistent(tmp_path: Path) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text(
        "compute,downlink,uplink,latency,memory\n1e8,1e5,5e4,0.1,1e6\n3e8,1e6,inf,0,3800\n2e8,inf,1e5,0.2,inf\n"
    )
    flags = {"capabilities": str(devices), "units": "physical", "clients": 3, "scheduler": "minimum-priority"}
    directory = run(small("fed-raa", tmp_path / "run", **flags)).directory
    assert "consistent" in replay(directory)
    # 3800 bytes hold the step of fragments 0 and 1 alone (2180 and 3036 bytes; the third takes 4456)
    held = {line["fragment"] for line in read(directory) if line["kind"] == "dispatch" and line["client"] == 1}
    assert held == {0, 1}


def test_two_partitioned_layers_leave_blocks_uncovered(tmp_path: Path) -> None:
    directory = run(small("fed-raa-sync", tmp_path / "run", hidden=(20, 30), fragments=2)).directory
    assert "consistent" in replay(directory)
    # 40/60 of 20 and of 30 units: the blocks 8 x 18 and 12 x 12 between the fragments belong to neither
    assert {line["uncovered"] for line in read(directory) if line["kind"] == "round"} == {8 * 18 + 12 * 12}


class Flaky(LocalExecutor):
    """Loses the first attempt at task 3."""

    lost = False

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        if task == 3 and not self.lost:
            self.lost = True
            return Fault(task=3, worker=0, what="lost")
        return super().wait(task, timeout)


def local_pool(spec: Any, kind: type[LocalExecutor] = LocalExecutor) -> LocalExecutor:
    return kind(spec.worker_spec.trainer("cpu"), spec.worker_spec.evaluator(spec.data, "cpu"), spec.data)


def test_retried_task_is_consistent(tmp_path: Path) -> None:
    spec = build(small("fed-raa", tmp_path))
    RunSession(spec, tmp_path, local_pool(spec, Flaky), threading.Event()).execute()
    assert "1 fault" in replay(tmp_path)
    log = read(tmp_path)
    fault = next(line for line in log if line["kind"] == "fault")
    fault["task"] = 99
    write(tmp_path, log)
    with pytest.raises(Inconsistent, match=rf"line {fault['seq'] + 1} \(fault\): task is 99"):
        replay(tmp_path)


def change(kind: str, field: str, value: Callable[[Any], Any]) -> Callable[[Log], int]:
    """Changes one field of the twelfth line of a kind; returns its line number."""

    def edit(log: Log) -> int:
        line = [line for line in log if line["kind"] == kind][11]
        line[field] = value(line[field])
        return int(line["seq"]) + 1

    return edit


def lose(kind: str, field: str) -> Callable[[Log], int]:
    """Takes a field out of the twelfth line of a kind; returns its line number."""

    def edit(log: Log) -> int:
        line = [line for line in log if line["kind"] == kind][11]
        del line[field]
        return int(line["seq"]) + 1

    return edit


CHANGES = {
    "fragment": change("dispatch", "fragment", lambda j: (j + 1) % 4),
    "version": change("dispatch", "version", lambda version: version + 1),
    "step": change("dispatch", "step", lambda step: step - 1),
    "client": change("dispatch", "client", lambda client: (client + 1) % 5),
    "count": change("dispatch", "counts", lambda counts: [counts[0] + 1, *counts[1:]]),
    "feasible": change("dispatch", "feasible", lambda feasible: feasible[:-1]),
    "cost": change("dispatch", "cost", lambda cost: np.nextafter(cost, 1)),
    "bytes down": change("dispatch", "bytes_down", lambda size: size + 4),
    "dispatch time": change("dispatch", "t", lambda t: np.nextafter(t, 1)),
    "commit time": change("commit", "t", lambda t: np.nextafter(t, 1)),
    "staleness": change("commit", "staleness", lambda staleness: staleness + 1),
    "global staleness": change("commit", "global_staleness", lambda staleness: staleness + 1),
    "mix": change("commit", "mix", lambda mix: np.nextafter(mix, 1)),
    "committed version": change("commit", "version", lambda version: version + 1),
    "base version": change("commit", "base_version", lambda version: version + 1),
    "task": change("commit", "task", lambda task: task + 1),
    "samples": change("commit", "samples", lambda samples: samples + 1),
    "missing field": lose("commit", "staleness"),
    "loss": change("commit", "train_loss", lambda loss: "low"),
    "kind": change("commit", "kind", lambda kind: "comit"),
    "evaluated step": change("eval", "step", lambda step: step + 1),
    "evaluation time": change("eval", "t", lambda t: np.nextafter(t, 1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_field_is_named_with_its_line(name: str, copy: Callable[[str], Path]) -> None:
    directory = copy("fed-raa")
    log = read(directory)
    line = CHANGES[name](log)
    write(directory, log)
    with pytest.raises(Inconsistent, match=rf"events\.jsonl line {line}[ :]"):
        replay(directory)


ROUND_CHANGES = {
    "round": ("round", "round", 1),
    "clients": ("round", "clients", 1),
    "coverage_min": ("round", "coverage_min", 1),
    "coverage_max": ("round", "coverage_max", -1),
    "uncovered": ("round", "uncovered", 1),
    "coverage_min_trained": ("round", "coverage_min_trained", 1),
    "longest_untrained": ("round", "longest_untrained", 1),
    "time": ("round", "t", 1e-9),
    "mix": ("commit", "mix", 1e-9),
    "version": ("commit", "version", -1),
    "count": ("dispatch", "step", -1),
}


@pytest.mark.parametrize("method", ["fed-raa-sync", "fedavg", "fedprox", "scaffold"])
@pytest.mark.parametrize("name", ROUND_CHANGES)
def test_changed_round_is_named_with_its_line(name: str, method: str, copy: Callable[[str], Path]) -> None:
    kind, field, by = ROUND_CHANGES[name]
    directory = copy(method)
    log = read(directory)
    line = [line for line in log if line["kind"] == kind][3]
    line[field] += by
    write(directory, log)
    with pytest.raises(Inconsistent, match=rf"line {line['seq'] + 1} \({kind}\): {field} is .*; the rules give"):
        replay(directory)


@pytest.mark.parametrize("method", ["fed-raa", "fed-raa-sync", "fedavg"])
@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("what", ["dropped", "duplicated", "swapped"])
def test_line_out_of_place_is_caught_wherever_it_is(
    what: str, renumbered: bool, method: str, copy: Callable[[str], Path]
) -> None:
    directory = copy(method)
    genuine = read(directory)
    for place in range(len(genuine) - 1):
        log = genuine.copy()
        if what == "dropped":
            del log[place]
        elif what == "duplicated":
            log.insert(place, log[place])
        else:
            log[place], log[place + 1] = log[place + 1], log[place]
        write(directory, [line | {"seq": seq} for seq, line in enumerate(log)] if renumbered else log)
        with pytest.raises(Inconsistent, match=r"events\.jsonl line \d+") as caught:
            replay(directory)
        line = int(str(caught.value).split("line ")[1].split()[0].rstrip(":"))
        assert line >= place + 1
        assert renumbered or line <= place + 2


COMMON = ("seq", "t", "task", "client", "fragment", "version")
COVERAGE = ("coverage_min", "coverage_max", "uncovered", "coverage_min_trained", "longest_untrained")
NUMBERS = {
    "dispatch": (*COMMON, "step", "cost", "bytes_down"),
    "commit": (*COMMON, "base_version", "staleness", "global_staleness", "mix", "bytes_up", "samples", "flops"),
    "round": ("seq", "t", "round", "clients", *COVERAGE),
}


@pytest.fixture(scope="module", params=["fed-raa", "fed-raa-random", "fedbuff", "fed-raa-sync", "fedavg", "splitfed"])
def scratch(
    request: pytest.FixtureRequest, genuine: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A copy to overwrite, and the log as it was."""
    directory = Path(shutil.copytree(genuine(request.param), tmp_path_factory.mktemp("scratch") / "copy"))
    return directory, (directory / "events.jsonl").read_text()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_changed_number_is_caught(data: st.DataObject, scratch: tuple[Path, str]) -> None:
    """Of dispatch, commit and round lines; the measured `wall` and `train_loss` are believed."""
    directory, text = scratch
    log = [json.loads(line) for line in text.splitlines()]
    line = data.draw(st.sampled_from([line for line in log if line["kind"] in NUMBERS]), "line")
    lists = [field for field in ("counts", "feasible") if line.get(field)]
    field = data.draw(st.sampled_from([*NUMBERS[line["kind"]], *lists]), "field")
    number = line["seq"] + 1
    holder, key = line, field
    if field in lists:
        holder, key = line[field], data.draw(st.integers(0, len(line[field]) - 1), "place")
    old = holder[key]
    if isinstance(old, int):
        new: Any = data.draw(st.one_of(st.just(old + 1), st.just(old - 1), st.integers(-(10**12), 10**12)), "new")
    else:
        new = data.draw(st.one_of(st.just(float(np.nextafter(old, 9))), st.floats(0, 10, allow_nan=False)), "new")
    assume(new != old)
    holder[key] = new
    write(directory, log)
    with pytest.raises(Inconsistent, match=rf"events\.jsonl line {number} "):
        replay(directory)


@pytest.mark.parametrize("method", ["fed-raa", "fedavg"])
def test_every_beginning_of_a_log_is_consistent(method: str, copy: Callable[[str], Path]) -> None:
    """A run that was killed leaves one."""
    directory = copy(method)
    (directory / "summary.json").unlink()
    shutil.rmtree(directory / "checkpoints")  # which are of the end
    log = read(directory)
    for length in range(len(log)):
        write(directory, log[:length])
        assert "has not ended" in replay(directory)


def spoil_accuracy(directory: Path) -> str:
    log = read(directory)
    line = next(line for line in log if line["kind"] == "eval" and line["step"] == 6)
    line["accuracy"] += 0.01
    write(directory, log)
    return rf"evals.csv line 4: accuracy is .*; line {line['seq'] + 1} of the log gives"


def spoil_sha(directory: Path) -> str:
    log = read(directory)
    log[-1]["model_sha256"] = "0" * 64
    write(directory, log)
    summary = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps(summary | {"model_sha256": "0" * 64}))
    return r"model.pt: model_sha256 of its parameters is [0-9a-f]{64}; the last line of the log says 0000"


def spoil_model(directory: Path) -> str:
    state = torch.load(directory / "model.pt", weights_only=True)
    next(iter(state.values())).view(-1)[5] += 1e-3
    torch.save(state, directory / "model.pt")
    return "model.pt: model_sha256"


def spoil_summary(directory: Path) -> str:
    summary = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps(summary | {"bytes_up": summary["bytes_up"] - 1}))
    return r"summary.json: bytes_up is \d+; the log gives \d+"


def spoil_reason(directory: Path) -> str:
    log = read(directory)
    log[-1]["reason"] = "time"
    write(directory, log)
    return rf"line {len(log)} \(end\): reason is 'time'; the rules give 'steps'"


def spoil_evals(directory: Path) -> str:
    rows = (directory / "evals.csv").read_text().splitlines(keepends=True)
    (directory / "evals.csv").write_text("".join(rows[:-1]))
    return r"evals.csv: has \d+ evaluations; the log has \d+"


def spoil_text(directory: Path) -> str:
    with (directory / "events.jsonl").open("a") as stream:
        stream.write('{"seq": 9')
    return r"events.jsonl line \d+: is no JSON object"


def spoil_rules(directory: Path) -> str:
    config = json.loads((directory / "config.json").read_text())
    config["method"]["update"]["mixing"] = 0.7
    (directory / "config.json").write_text(json.dumps(config))
    return r"\(commit\): mix is 0.6; the rules give 0.7"


def lose_model(directory: Path) -> str:
    (directory / "model.pt").unlink()
    return "model.pt: cannot be read"


SPOILERS = (spoil_accuracy, spoil_sha, spoil_model, spoil_summary, spoil_reason, spoil_evals, spoil_text, spoil_rules)


@pytest.mark.parametrize("spoil", [*SPOILERS, lose_model])
def test_spoiled_directory_is_inconsistent(spoil: Callable[[Path], str], copy: Callable[[str], Path]) -> None:
    directory = copy("fed-raa")
    message = spoil(directory)
    with pytest.raises(Inconsistent, match=message):
        replay(directory)


def test_exit_codes(
    genuine: Callable[[str], Path],
    copy: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replay", str(genuine("fed-raa"))]) == 0
    assert "consistent (" in capsys.readouterr().out
    spoiled = copy("fed-raa")
    spoil_reason(spoiled)
    assert main(["replay", str(spoiled)]) == 1
    assert "reason is 'time'" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "nothing")]) == 2
    (spoiled / "config.json").write_text('{"experiment": {}}')
    assert main(["replay", str(spoiled)]) == 2
    assert "is not a run's configuration; it lacks" in capsys.readouterr().err
