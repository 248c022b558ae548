"""Parts that cannot be copied, looked at only, saved or made; callbacks that nobody would call."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fedraa as fl
from fedraa.components.calls import calling
from fedraa.components.registry import Seam
from fedraa.components.state import saved
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
    ("scheduler", "said"),
    [
        (Locked(), "scheduler: Locked cannot be copied for a run: cannot pickle"),
        (Changes(), "scheduler: Changes failed with ValueError: assignment destination is read-only"),
        (Shuffles(), "scheduler: Shuffles failed with ValueError: array is read-only"),
    ],
)
def test_schedulers(scheduler: fl.Scheduler, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
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
    ("given", "said"),
    [(5, "state: State gave int; takes a dict"), (OSError("no"), "state: State failed with OSError: no")],
)
def test_what_is_no_state(given: object, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        saved(State(given))


def leaves() -> None:
    sys.exit(3)


def test_whoever_ends_the_process_or_speaks_in_lines_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"^x: leaves failed with SystemExit: 3$"), calling("x", leaves):
        leaves()
    with pytest.raises(ValueError, match=r"^x: leaves failed with KeyError: 'a b'$"), calling("x", leaves):
        raise KeyError("a b")
    with pytest.raises(ValueError, match=r"^x: leaves failed with RuntimeError: two lines$"), calling("x", leaves):
        raise RuntimeError("two\n  lines")
    (tmp_path / "ends_the_process.py").write_text("import sys\nsys.exit(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seam: Seam[Any] = Seam("scheduler", (), {"leaving": leaves})
    with pytest.raises(ValueError, match=r"^scheduler: ends_the_process:X cannot be imported: SystemExit: 7$"):
        seam.make("ends_the_process:X")
    with pytest.raises(ValueError, match=r"^scheduler: leaving cannot be made: SystemExit: 3$"):
        seam.make("leaving")


def test_a_hook_that_there_is_not_is_refused(tmp_path: Path) -> None:
    class Late(fl.Callback):
        def on_evaluation(self, step: int) -> None:
            raise AssertionError

    with pytest.raises(ValueError, match=r"^callbacks: Late has on_evaluation, which is no hook; did you mean on_eval"):
        fl.run(**SMALL, callbacks=[Late()], out=tmp_path / "run")


def test_a_callback_that_ends_the_process_leaves_a_checkpoint(tmp_path: Path) -> None:
    class Leaves(fl.Callback):
        def on_eval(self, step: int, t: float, metrics: Any) -> bool:
            sys.exit(4)

    with pytest.raises(SystemExit) as ended:
        fl.run(**SMALL, method="fedavg", rounds=2, callbacks=[Leaves()], out=tmp_path / "run")
    assert ended.value.code == 4
    assert "go on with: fedraa resume" in ended.value.__notes__[0]
    assert newest_first(tmp_path / "run" / CHECKPOINTS)
    assert fl.resume(tmp_path / "run").summary["steps"] == 2


def test_what_is_no_experiment_and_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^experiment: got 'fedavg'; takes an Experiment"):
        fl.run("fedavg")  # type: ignore[arg-type]  # a mistake
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    torch.nn.init.constant_(net[1].weight, float("nan"))
    small = {name: value for name, value in SMALL.items() if name != "hidden"}
    with pytest.raises(ValueError, match=r"^model: .* not finite"):
        fl.run(**small, model=net, method="fedavg", rounds=1, out=tmp_path / "run")
