"""Callbacks in one process: the events that they receive, the step at which they end a run, and resumed runs."""

import json
import time
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

import pytest
from equal_runs import lines, same_run
from refusals import refuses

from fedraa.api import resume, run
from fedraa.callbacks import Callback, EarlyStopping, Event, Limits, Progress, RunStart
from fedraa.callbacks.events import read_metrics, to_event
from fedraa.cli.main import main
from fedraa.config.experiment import Experiment
from fedraa.data import Federated
from fedraa.engine import session
from fedraa.replay.replay import replay
from fedraa.rundir.history import SUMMARY, History

SMALL: dict[str, Any] = {"engine": "local", "hidden": (8,), "clients": 4, "local_steps": 2, "updates": 24, "seed": 5}
START = RunStart(Experiment(), Path("run"), Limits(None, None, None), resumed=False)


def experiment(out: Path, **changes: Any) -> Experiment:
    return Experiment(**SMALL | {"eval_every": 4, "checkpoint_every": 3, "out": out} | changes)


class Records(Callback):
    """A callback that records every call in order, and does not change the run."""

    blocking = False

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.resumed: list[bool] = []
        self.closed = 0

    def on_start(self, run: RunStart) -> None:
        self.resumed.append(run.resumed)
        self.calls = []

    def on_dispatch(self, event: Event) -> None:
        self.calls.append(("dispatch", event))

    def on_commit(self, event: Event) -> None:
        self.calls.append(("commit", event))

    def on_round(self, event: Event) -> None:
        self.calls.append(("round", event))

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        self.calls.append(("eval", step, t, dict(metrics)))

    def on_end(self, event: Event) -> None:
        self.calls.append(("end", event))

    def on_close(self) -> None:
        self.closed += 1


class EndAt(Callback):
    """A callback that ends the run at the n-th event of a kind."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count
        self.seen = 0

    def on_start(self, run: RunStart) -> None:
        self.seen = 0

    def on_dispatch(self, event: Event) -> bool:
        return self._saw("dispatch")

    def on_commit(self, event: Event) -> bool:
        return self._saw("commit")

    def on_round(self, event: Event) -> bool:
        return self._saw("round")

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
        return self._saw("eval")

    def _saw(self, kind: str) -> bool:
        self.seen += kind == self.kind
        return self.seen == self.count and kind == self.kind


class Killed(BaseException):
    """An exception that simulates the death of the process."""


class RaiseAt(Callback):
    """A callback that raises at the n-th commit of a run."""

    def __init__(self, commit: int, error: BaseException) -> None:
        self.commit, self.error = commit, error

    def on_start(self, run: RunStart) -> None:
        self.seen = 0

    def on_commit(self, event: Event) -> None:
        self.seen += 1
        if self.seen == self.commit:
            raise self.error


def test_callback_receives_the_events_in_the_order_of_the_log(tmp_path: Path) -> None:
    seen = Records()
    history = run(experiment(tmp_path / "run", method="fed-raa-sync", updates=None, rounds=3), callbacks=[seen])
    expected: list[tuple[object, ...]] = []
    for line in history.lines():
        kind = line["kind"]
        if kind == "eval":
            metrics = {name: line[name] for name in ("accuracy", "loss", "client_mean", "client_std", "client_worst")}
            expected.append((kind, line["step"], line["t"], metrics))
        elif kind != "checkpoint":
            expected.append((kind, {name: line[name] for name in line if name not in ("seq", "wall")}))
    assert seen.calls == expected
    assert {call[0] for call in expected} == {"dispatch", "commit", "round", "eval", "end"}
    assert (seen.resumed, seen.closed) == ([False], 1)


def test_event_has_the_logged_values_and_nan_for_a_metric_without_a_value() -> None:
    event = to_event({"seq": 3, "kind": "eval", "t": 1.0, "wall": 9.0, "step": 4, "loss": None, "widths": (1, 2)})
    assert event == {"kind": "eval", "t": 1.0, "step": 4, "loss": None, "widths": [1, 2]}
    assert str(read_metrics({"kind": "eval", "t": 1.0, "step": 4, "loss": None})) == str({"loss": nan})


def test_callback_that_changes_an_event_changes_neither_the_run_nor_other_callbacks(tmp_path: Path) -> None:
    class Empties(Records):
        def on_dispatch(self, event: Any) -> None:
            event["fragment_updates"].append(-1)

        def on_commit(self, event: Any) -> None:
            event.clear()

    before, after, alone = Records(), Records(), Records()
    history = run(experiment(tmp_path / "changed"), callbacks=[before, Empties(), after])
    undisturbed = run(experiment(tmp_path / "alone"), callbacks=[alone])
    assert before.calls == after.calls == alone.calls
    same_run(history.directory, undisturbed.directory)


def test_hook_that_is_set_on_the_object_is_called(tmp_path: Path) -> None:
    callback = Callback()
    steps: list[object] = []
    callback.on_round = lambda event: steps.append(event["round"])  # type: ignore[method-assign]
    run(experiment(tmp_path / "run", method="fedavg", updates=None, rounds=3), callbacks=[callback])
    assert steps == [0, 1, 2]


def test_interruption_after_the_end_of_the_run_does_not_advise_to_resume_it(tmp_path: Path) -> None:
    class Interrupts(Callback):
        def on_end(self, event: Event) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(experiment(tmp_path / "run"), callbacks=[Interrupts()])
    assert not hasattr(caught.value, "__notes__")
    assert History(tmp_path / "run").summary["steps"] == 24


@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize(
    ("kind", "method"),
    [("dispatch", "fed-raa"), ("commit", "fed-raa"), ("eval", "fed-raa"), ("commit", "fedavg"), ("round", "fedavg")],
)
def test_run_ends_at_the_event_at_which_a_callback_stops_it(kind: str, method: str, clock: str, tmp_path: Path) -> None:
    limit = {"updates": None, "rounds": 12} if method == "fedavg" else {}
    timed = {"time_scale": 0.01} if clock == "wall" else {}
    made = experiment(tmp_path / "run", method=method, clock=clock, eval_every=2, **limit, **timed)
    history = run(made, callbacks=[EndAt(kind, 5)])
    log = history.lines()
    assert (log[-1]["reason"], log[-1]["by"]) == ("callback", "EndAt")
    assert (history.summary["reason"], history.summary["by"]) == ("callback", "EndAt")
    last = [line["seq"] for line in log if line["kind"] == kind][4]
    # Only the evaluation of the final model follows.
    rest = [line["kind"] for line in log if line["seq"] > last]
    assert rest in (["end"], ["eval", "end"])
    assert "ended by callback of EndAt (not checked)" in replay(history.directory)


def test_replay_checks_when_a_callback_ended_a_run(tmp_path: Path) -> None:
    directory = run(experiment(tmp_path / "run"), callbacks=[EndAt("commit", 5)]).directory
    log = (directory / "events.jsonl").read_text().splitlines()
    end = json.loads(log[-1])
    for wrong in ({"step": 6}, {"t": end["t"] * 2}, {"by": None}):
        (directory / "events.jsonl").write_text("\n".join([*log[:-1], json.dumps(end | wrong)]) + "\n")
        assert main(["replay", str(directory)]) == 1


def test_nonblocking_callback_neither_ends_nor_changes_a_run(tmp_path: Path) -> None:
    class NonBlocking(EndAt):
        blocking = False

    run(experiment(tmp_path / "seen"), callbacks=[NonBlocking("commit", 3), NonBlocking("eval", 1)])
    run(experiment(tmp_path / "alone"))
    same_run(tmp_path / "seen", tmp_path / "alone")
    assert History(tmp_path / "seen").config["resolved"]["max_pending_evals"] == 4


def test_limit_that_is_reached_before_the_callback_stops_is_the_reason(tmp_path: Path) -> None:
    class AtTheLast(Callback):
        def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
            return step == 24

    # The run reaches step 24, and then evaluates it.
    assert run(experiment(tmp_path / "run", eval_every=5), callbacks=[AtTheLast]).summary["reason"] == "steps"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_killed_and_resumed_run_stops_early_at_the_same_step(share: float, tmp_path: Path) -> None:
    told, again = Records(), Records()
    made = {"updates": 200, "eval_every": 2}
    run(experiment(tmp_path / "undisturbed", **made), callbacks=[EarlyStopping(patience=3), told])
    assert History(tmp_path / "undisturbed").summary["by"] == "EarlyStopping"
    total = sum(call[0] == "commit" for call in told.calls)
    commit = max(1, round(share * total))
    with pytest.raises(Killed):
        run(experiment(tmp_path / "run", **made), callbacks=[EarlyStopping(patience=3), RaiseAt(commit, Killed())])
    resume(tmp_path / "run", callbacks=[EarlyStopping(patience=3), again])
    same_run(tmp_path / "run", tmp_path / "undisturbed")
    assert again.calls == told.calls
    assert again.resumed == [True]


def test_run_ended_by_a_failing_callback_resumes_to_the_same_result(tmp_path: Path) -> None:
    """At commit 7 one callback ends the run and another raises. In the resumed run the first is called again."""
    run(experiment(tmp_path / "undisturbed"), callbacks=[EndAt("commit", 7)])
    wrong = ArithmeticError("seven")
    seen = Records()
    with pytest.raises(ArithmeticError, match="seven") as caught:
        run(experiment(tmp_path / "run"), callbacks=[EndAt("commit", 7), RaiseAt(7, wrong), seen])
    (note,) = caught.value.__notes__
    assert note.endswith(f": fedraa resume {tmp_path / 'run'}")
    assert not (tmp_path / "run" / SUMMARY).exists()
    assert sum(line["kind"] == "commit" for line in lines(tmp_path / "run")) == 7
    assert seen.closed == 1
    resume(tmp_path / "run", callbacks=[EndAt("commit", 7)])
    same_run(tmp_path / "run", tmp_path / "undisturbed")


def test_time_of_callbacks_for_earlier_events_is_not_time_of_the_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    real = time.monotonic

    class Slow(Callback):
        """A callback that takes 1000 s for each of the first three commits, which are before the checkpoint."""

        def on_commit(self, event: Event) -> None:
            nonlocal calls
            calls += 1

    with pytest.raises(Killed):
        run(experiment(tmp_path / "run", clock="wall", time_scale=0.01), callbacks=[RaiseAt(9, Killed())])
    monkeypatch.setattr(time, "monotonic", lambda: real() + 1000 * min(calls, 3))
    history = resume(tmp_path / "run", callbacks=[Slow])
    assert calls == 24
    assert history.events[["t", "wall"]].max().max() < 1000


def test_time_in_which_the_run_directory_is_prepared_is_not_time_on_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.monotonic
    passed = 0.0

    def write_slowly(directory: Path, data: Federated) -> None:
        nonlocal passed
        passed = 1000.0

    monkeypatch.setattr(time, "monotonic", lambda: real() + passed)
    monkeypatch.setattr(session, "write_partition", write_slowly)
    history = run(experiment(tmp_path / "run", clock="wall", time_scale=0.01))
    assert history.events["t"].max() < 1000


def test_request_to_stop_survives_an_exception_at_a_later_event_of_the_step(tmp_path: Path) -> None:
    """The last commit of a round requests the end. At the round, which the same step records, a callback raises."""

    class Raises(Callback):
        def on_round(self, event: Event) -> None:
            raise ArithmeticError

    fields = {"method": "fedavg", "updates": None, "rounds": 5}
    run(experiment(tmp_path / "undisturbed", **fields), callbacks=[EndAt("commit", 4)])
    with pytest.raises(ArithmeticError):
        run(experiment(tmp_path / "run", **fields), callbacks=[EndAt("commit", 4), Raises])
    assert resume(tmp_path / "run", callbacks=[EndAt("commit", 4)]).summary["steps"] == 1
    same_run(tmp_path / "run", tmp_path / "undisturbed")


def test_run_ended_by_a_failure_in_on_progress_resumes_to_the_same_result(tmp_path: Path) -> None:
    class Fails(Callback):
        def on_progress(self, progress: Progress) -> None:
            if progress.step:
                raise ArithmeticError

    run(experiment(tmp_path / "undisturbed"))
    with pytest.raises(ArithmeticError):
        run(experiment(tmp_path / "run"), callbacks=[Fails])
    resume(tmp_path / "run")
    same_run(tmp_path / "run", tmp_path / "undisturbed")


def test_callback_added_on_resume_does_not_change_pending_evaluations(tmp_path: Path) -> None:
    """A callback that is added in a resume receives evaluations later, if the run did not wait for them.

    `replay` accepts the log.
    """
    with pytest.raises(Killed):
        run(experiment(tmp_path / "run", eval_every=1), callbacks=[RaiseAt(5, Killed())])
    history = resume(tmp_path / "run", callbacks=[EndAt("eval", 9)])
    assert history.config["resolved"]["max_pending_evals"] == 4
    assert history.summary["by"] == "EndAt"
    assert int(str(history.summary["steps"])) == 8 + 4
    assert "consistent" in replay(history.directory)


@pytest.mark.parametrize(
    ("values", "stops"),
    [
        # With patience 2, a run ends after two successive evaluations that are not better than the best one.
        ([0.1, 0.2, 0.2, 0.15, 0.9], 3),
        ([0.1, 0.2, 0.1, 0.3, 0.2, 0.25], 5),
        ([0.5, nan, nan, 0.9], 2),
        ([nan, nan], 1),
        ([0.1, 0.2, 0.3], None),
    ],
)
def test_early_stopping_waits_for_patience(values: list[float], stops: int | None) -> None:
    for mode, sign in (("max", 1.0), ("min", -1.0)):
        callback = EarlyStopping("loss", patience=2, mode=mode)  # type: ignore[arg-type]
        # on_start resets the callback.
        for _ in range(2):
            callback.on_start(START)
            asked = [callback.on_eval(step, 0.0, {"loss": sign * value}) for step, value in enumerate(values)]
            assert (asked.index(True) if any(asked) else None) == stops


def test_early_stopping_ignores_improvements_up_to_its_min_delta() -> None:
    callback = EarlyStopping(patience=1, min_delta=0.125)
    callback.on_start(START)
    assert [callback.on_eval(0, 0.0, {"accuracy": value}) for value in (0.0, 0.25, 0.375)] == [False, False, True]


@pytest.mark.parametrize(
    ("given", "field", "value", "name"),
    [
        ("early-stoping", "callbacks", "early-stoping", " early-stopping?"),
        ("early-stopping(patience=0)", "callbacks.patience", 0, "1"),
        ("early-stopping(min_delta=-1)", "callbacks.min_delta", -1, "0"),
        ("early-stopping(mode='most')", "callbacks.mode", "most", "'max' or 'min'"),
        ("csv", "callbacks", "csv", "csv(path=...)"),
        (print, "callbacks", print, "early-stopping"),
    ],
)
def test_invalid_callback_is_refused_before_anything_is_written(
    given: Any, field: str, value: object, name: str, tmp_path: Path
) -> None:
    with refuses(field, name, got=value):
        run(experiment(tmp_path / "run"), callbacks=[given])
    assert not (tmp_path / "run").exists()


def test_early_stopping_with_an_unknown_metric_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    flags = ["--engine", "local", "--hidden", "8", "--clients", "4", "--updates", "8", "--quiet", "--out", str(out)]
    assert main(["run", *flags, "--callbacks", "early-stopping(metric='acuracy')"]) == 2
    assert capsys.readouterr().err.startswith("fedraa: callbacks.metric: got 'acuracy'")
    assert not out.exists()


def test_the_command_line_takes_callbacks_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_callbacks.py").write_text(
        "import fedraa as fl\n"
        "class Enough(fl.Callback):\n"
        "    def on_eval(self, step, t, metrics):\n"
        "        return step >= 8\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out, rows = tmp_path / "run", tmp_path / "rows.csv"
    flags = ["--engine", "local", "--hidden", "8", "--clients", "4", "--updates", "30", "--eval-every", "4", "--quiet"]
    given = ["--callbacks", "my_callbacks:Enough", f"csv(path='{rows}')"]
    assert main(["run", *flags, "--out", str(out), *given]) == 0
    assert (History(out).summary["by"], History(out).summary["steps"]) == ("Enough", 8)
    assert [line.split(",")[0] for line in rows.read_text().splitlines()] == ["step", "0", "4", "8"]
