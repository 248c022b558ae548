"""Components that cannot be copied, pickled, saved or created; callbacks with unknown hooks."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refuses

import fedraa as fl
from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.components.state import save_state
from fedraa.rundir.checkpoint import newest_first
from fedraa.rundir.file_names import CHECKPOINTS

SMALL: dict[str, Any] = {"clients": 2, "hidden": (8,), "local_steps": 1, "quiet": True, "engine": "local"}


class Locked(fl.Scheduler):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def choose(self, view: Any, rng: Any) -> int:
        return 0


class Changes(fl.Scheduler):
    def choose(self, view: Any, rng: Any) -> int:
        view.costs[:] = 0
        return 0


class Shuffles(fl.Scheduler):
    def choose(self, view: Any, rng: Any) -> int:
        rng.shuffle(view.feasible)
        return int(view.feasible[0])


@pytest.mark.parametrize(
    ("scheduler", "name"),
    [
        (Locked(), "cannot pickle"),
        (Changes(), "ValueError: assignment destination is read-only"),
        (Shuffles(), "ValueError: array is read-only"),
    ],
)
def test_error_names_a_scheduler_that_cannot_be_copied_or_changes_its_inputs(
    scheduler: fl.Scheduler, name: str, tmp_path: Path
) -> None:
    with refuses("scheduler", name, type(scheduler).__name__):
        fl.run(**SMALL, method="fed-raa", updates=3, scheduler=scheduler, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class State:
    def __init__(self, given: Any) -> None:
        self.given = given

    def state(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@pytest.mark.parametrize(
    ("given", "name"),
    [(5, "got 5"), (OSError("no"), "OSError: no")],
)
def test_state_that_fails_or_is_not_a_dict_is_refused(given: object, name: str) -> None:
    with refuses("state", "State", name):
        save_state(State(given))


def leaves() -> None:
    sys.exit(3)


def test_error_of_a_component_is_one_line_with_the_exception_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refuses("x", "leaves", "SystemExit: 3"), convert_errors("x", leaves):
        leaves()
    with refuses("x", "leaves", "KeyError: 'a b'"), convert_errors("x", leaves):
        raise KeyError("a b")
    with refuses("x", "leaves", "RuntimeError: two lines"), convert_errors("x", leaves):
        raise RuntimeError("two\n  lines")
    (tmp_path / "ends_the_process.py").write_text("import sys\nsys.exit(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry: ComponentRegistry[Any] = ComponentRegistry("scheduler", (), {"leaving": leaves})
    with refuses("scheduler", "SystemExit: 7", got="ends_the_process:X"):
        registry.resolve("ends_the_process:X")
    with refuses("scheduler", "SystemExit: 3", got="leaving"):
        registry.resolve("leaving")


def test_error_about_an_unknown_callback_hook_suggests_the_known_one(tmp_path: Path) -> None:
    class Late(fl.Callback):
        def on_evaluation(self, step: int) -> None:
            raise AssertionError

    with refuses("callbacks", "Late", "on_evaluation", "did you mean on_eval?"):
        fl.run(**SMALL, callbacks=[Late()], out=tmp_path / "run")


def test_a_callback_that_ends_the_process_leaves_a_checkpoint(tmp_path: Path) -> None:
    class Leaves(fl.Callback):
        def on_eval(self, step: int, t: float, metrics: Any) -> bool:
            sys.exit(4)

    with pytest.raises(SystemExit) as ended:
        fl.run(**SMALL, method="fedavg", rounds=2, callbacks=[Leaves()], out=tmp_path / "run")
    assert ended.value.code == 4
    assert "resume with: fedraa resume" in ended.value.__notes__[0]
    assert newest_first(tmp_path / "run" / CHECKPOINTS)
    assert fl.resume(tmp_path / "run").summary["steps"] == 2


def test_wrong_experiment_and_model_with_nan_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^experiment: got 'fedavg'"):
        fl.run("fedavg")  # type: ignore[arg-type]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    torch.nn.init.constant_(net[1].weight, float("nan"))
    small = {name: value for name, value in SMALL.items() if name != "hidden"}
    with pytest.raises(ValueError, match=r"^model: .*1\.weight"):
        fl.run(**small, model=net, method="fedavg", rounds=1, out=tmp_path / "run")
