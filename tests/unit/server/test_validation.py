"""Bad updates are refused with a reason and recorded, and the model keeps every bit."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedraa.callbacks import Limits
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment
from fedraa.devices.availability import Timing
from fedraa.engine.build import build_run
from fedraa.engine.executor import FinishedEvaluation
from fedraa.engine.factories import make_server
from fedraa.engine.loop import Loop
from fedraa.engine.loop_options import LoopOptions
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Evaluation, Fault, State, Task, Update, Vector
from fedraa.rundir.event_log import EventLog
from fedraa.rundir.file_names import EVENTS
from fedraa.server.update_checks import check_update, join_receipts, outgrown_values, receipt_of
from fedraa.submodels.policies.pruning import AdaptivePruning

SIZE = 12
TASK = Task(
    id=7,
    client=2,
    turn=3,
    fragment=1,
    version=5,
    step=9,
    widths=(3,),
    buffer=np.zeros(SIZE, np.float32),
    lr=0.1,
    cost=1.0,
)
GOOD = Update(
    task=7, client=2, fragment=1, version=5, params=np.full(SIZE, 0.5, np.float32), steps=4, loss=0.3, seconds=0.01
)


def test_valid_update_passes() -> None:
    assert check_update(GOOD, TASK) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"task": 8}, "task is 8; expected 7"),
        ({"client": 0}, "client is 0; expected 2"),
        ({"fragment": 0}, "fragment is 0; expected 1"),
        ({"version": 6}, "version is 6; expected 5"),
        ({"params": np.zeros(SIZE)}, "params are float64, not float32"),
        ({"params": [0.0] * SIZE}, "params are list, not float32"),
        ({"extras": [("gradient", np.zeros(SIZE, np.float32))]}, "extras are list, not a mapping"),
        ({"params": np.zeros(SIZE - 1, np.float32)}, "params have the shape (11,), not (12,)"),
        ({"params": np.zeros((SIZE, 1), np.float32)}, "params have the shape (12, 1), not (12,)"),
        ({"params": np.array([np.inf, -np.inf] * 6, np.float32)}, "params hold 12 values that are not finite"),
        ({"extras": {"control": np.array([np.nan], np.float32)}}, "control hold 1 value that is not finite"),
        ({"loss": float("nan")}, "the training loss is nan"),
        ({"loss": None}, "the training loss is None"),
        ({"loss": 1j}, "the training loss is 1j"),
        ({"steps": 0}, "the steps are 0"),
        ({"steps": float("nan")}, "the steps are nan"),
        ({"steps": "3"}, "the steps are '3'"),
        ({"seconds": float("inf")}, "the duration is inf seconds"),
        ({"seconds": -1e9}, "the duration is -1000000000.0 seconds"),
    ],
)
def test_reason_names_the_defect_of_an_update(change: dict[str, Any], why: str) -> None:
    assert check_update(replace(GOOD, **change), TASK) == why


def test_update_without_a_task_in_flight_is_refused() -> None:
    assert check_update(GOOD, None) == "task 7 is not in flight"


def test_weights_on_one_shard_allow_growth_on_another() -> None:
    """A weight may grow to 1,000 times the largest received weight, which may be on another shard."""
    sent, new = np.array([1, 5], np.float32), np.array([2000, 5], np.float32)
    task, update = replace(TASK, buffer=sent), replace(GOOD, params=new)
    assert outgrown_values(update, task) is None
    pieces = [receipt_of(sent[:1], new[:1], is_piece=True), receipt_of(sent[1:], new[1:], is_piece=True)]
    assert outgrown_values(replace(update, receipt=join_receipts("push", pieces)), task) is None
    far = replace(update, params=np.array([6000, 5], np.float32))
    pieces[0] = receipt_of(sent[:1], far.params[:1], is_piece=True)
    reason = outgrown_values(far, task)
    assert reason is not None
    assert outgrown_values(replace(far, receipt=join_receipts("push", pieces)), task) == reason


def test_bound_limits_the_distance_from_the_sent_weights() -> None:
    # ||0.5 * ones(12)|| = sqrt(3) = 1.732...; from a task sent at 0.5 it is 0.
    assert check_update(GOOD, TASK, max_norm=1.74) is None
    assert check_update(GOOD, TASK, max_norm=1.73) == "the update's norm 1.732 is over the bound 1.73"
    assert check_update(GOOD, replace(TASK, buffer=GOOD.params), max_norm=1e-9) is None


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=SIZE, max_size=SIZE))
def test_update_with_any_finite_values_passes(values: list[float]) -> None:
    assert check_update(replace(GOOD, params=np.array(values, np.float32)), TASK) is None


def poison(good: Update, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Update:
    """Return an update with one of all possible defects."""
    kind = draw(st.sampled_from(["task", "client", "fragment", "version", "number", "size", "dtype", "loss", "norm"]))
    match kind:
        case "task" | "client" | "fragment" | "version":
            right = getattr(good, kind)
            return replace(good, **{kind: draw(st.integers(-(2**40), 2**40).filter(lambda value: value != right))})
        case "number":
            params = good.params.copy()
            place = draw(st.integers(0, len(params) - 1))
            params[place] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
            return replace(good, params=params)
        case "size":
            wrong = draw(st.integers(0, 2 * len(good.params)).filter(lambda size: size != len(good.params)))
            return replace(good, params=np.zeros(wrong, np.float32))
        case "dtype":
            dtype = draw(st.sampled_from(["f8", "f2", "i4", "?", "c8"]))
            return replace(good, params=good.params.astype(dtype))
        case "loss":
            return replace(good, loss=draw(st.sampled_from([float("nan"), float("inf")])))
        case _:
            scale = np.float32(draw(st.floats(1e4, 1e30)))
            return replace(good, params=good.params + scale)


class Scripted:
    """An executor in which the test makes the outcomes: each task gets `answer(task)`."""

    def __init__(self, answer: Callable[[Task], Update | Fault]) -> None:
        self.answer = answer
        self.tasks: dict[int, Task] = {}

    def submit(self, task: Task, due: float) -> None:
        self.tasks[task.id] = task

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        return self.answer(self.tasks[task])

    def ready(self, timeout: float) -> list[Update | Fault]:
        return [self.answer(task) for task in list(self.tasks.values())]

    def evaluate(self, params: Vector, kept: State) -> FinishedEvaluation:
        return FinishedEvaluation(params, kept, Evaluation({"accuracy": 0.1, "loss": 2.3}))

    def busy(self) -> tuple[int, int]:
        return 1, 1

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def spec() -> RunSpec:
    return build_run(Experiment(clients=3, hidden=(8,), engine="local"))


def make_loop(spec: RunSpec, executor: Scripted, directory: Path, updates: int) -> Loop:
    directory.mkdir()
    log = EventLog(directory)
    log.begin()
    loop = Loop(
        make_server(spec, log.record),
        executor,
        log,
        LoopOptions(
            limits=Limits(updates, None, None),
            eval_every=1000,
            checkpoint_every=1000,
            timing=Timing(0, 0.1),
            wall=False,
            max_update_norm=1e3,
        ),
        save=lambda: 0.0,
        stop=Event(),
    )
    loop.begin()
    return loop


def honest(task: Task) -> Update:
    return Update(task.id, task.client, task.fragment, task.version, task.params + np.float32(0.01), 3, 1.0, 0.01)


@settings(max_examples=150)
@given(data=st.data())
def test_poisoned_update_does_not_change_the_model(
    data: st.DataObject, spec: RunSpec, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("poison")
    seen: list[bytes] = []

    def answer(task: Task) -> Update:
        """Send two poisoned updates and then a valid one. Record the model before each."""
        seen.append(loop.server.params.tobytes())
        return poison(honest(task), data.draw) if len(seen) < 3 else honest(task)

    loop = make_loop(spec, Scripted(answer), directory / "run", updates=1)
    assert loop.run() == "steps"
    loop.log.close()
    assert seen[0] == seen[1] == seen[2] != loop.server.params.tobytes()
    lines = [json.loads(line) for line in (directory / "run" / EVENTS).read_text().splitlines()]
    refused = [line for line in lines if line["kind"] in ("fault", "drop")]
    assert [(line["kind"], line["action"]) for line in refused] == [("fault", "retry"), ("drop", "retry")]
    assert refused[0]["task"] == refused[1]["task"]
    assert all(str(line["error"]).startswith("update refused: ") for line in refused)
    assert sum(line["kind"] == "commit" for line in lines) == 1


def test_client_that_always_sends_bad_updates_is_quarantined(spec: RunSpec, tmp_path: Path) -> None:
    def answer(task: Task) -> Update:
        return replace(honest(task), params=task.params * np.float32(np.nan)) if task.client == 1 else honest(task)

    loop = make_loop(spec, Scripted(answer), tmp_path / "run", updates=50)
    assert loop.run() == "steps"
    loop.log.close()
    assert np.isfinite(loop.server.params).all()
    lines = [json.loads(line) for line in (tmp_path / "run" / EVENTS).read_text().splitlines()]
    drops = [line for line in lines if line["kind"] == "drop"]
    assert [(line["client"], line["action"]) for line in drops] == [(1, "retry"), (1, "quarantined")]
    assert all(re.match(r"update refused: params hold \d+ values", line["error"]) for line in drops)
    given = [line["seq"] for line in lines if line["kind"] == "dispatch" and line["client"] == 1]
    assert len(given) == 2
    assert given[1] < drops[1]["seq"]


@pytest.mark.parametrize(
    ("method", "name"), [("mimelite", "gradient"), ("prunefl", "squares"), ("fedrobust", "kept_adversary")]
)
def test_client_whose_updates_lack_requested_extras_is_quarantined(method: str, name: str, tmp_path: Path) -> None:
    def answer(task: Task) -> Update:
        assert task.asks == (name,)
        if task.client == 1:
            return honest(task)
        return replace(honest(task), extras={name: task.extra_values(name) if name in task.extras else task.params})

    made = find_method(method)
    # Only the first client trains at first.
    if method == "prunefl":
        made = replace(made, submodel=AdaptivePruning(initial=0))
    run = build_run(Experiment(method=made, clients=3, hidden=(8,), engine="local"))
    loop = make_loop(run, Scripted(answer), tmp_path / "run", updates=4)
    assert loop.run() == "steps"
    loop.log.close()
    lines = [json.loads(line) for line in (tmp_path / "run" / EVENTS).read_text().splitlines()]
    drops = [(line["client"], line["error"], line["action"]) for line in lines if line["kind"] == "drop"]
    what = f"update refused: {name} is missing"
    assert drops == [(1, what, "retry"), (1, what, "quarantined")]
    assert [line["clients"] for line in lines if line["kind"] == "round"] == [2, 2, 2, 2]
