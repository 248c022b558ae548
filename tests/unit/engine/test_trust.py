"""Code that a run directory names is imported only with trust, because anyone may have written the directory."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses
from torch import nn

import fedraa as fl
from fedraa.cli.main import main
from fedraa.components.imports import import_object, importing_only
from fedraa.components.text import paths_in

CODE = """
from pathlib import Path
import fedraa as fl
from torch import nn
Path({mark!r}).touch()

class First(fl.Scheduler):
    def choose(self, view, rng):
        return min(view.feasible)

def net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))
"""
SMALL: dict[str, Any] = {"engine": "local", "clients": 3, "local_steps": 1, "updates": 4, "quiet": True}
FOREIGN = ["module_of_mine:First", "module_of_mine:net"]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that exists after the foreign module was imported."""
    mark = tmp_path / "imported"
    (tmp_path / "module_of_mine.py").write_text(CODE.format(mark=str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "module_of_mine", raising=False)
    return mark


@pytest.fixture
def foreign(mark: Path, tmp_path: Path) -> Path:
    """Return a run of a foreign model and scheduler. Their module is not imported any more."""
    out = tmp_path / "run"
    fl.run(fl.Experiment(**SMALL, out=out, scheduler=FOREIGN[0], model=FOREIGN[1]))
    mark.unlink()
    del sys.modules["module_of_mine"]
    return out


def test_commands_import_no_foreign_code_without_trust(
    foreign: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = str(foreign.parent / "page.html")
    before = (foreign / "config.json").read_bytes()
    for command in (["resume", str(foreign), "--updates", "6"], ["report", str(foreign), "--out", page, "--landscape"]):
        assert main(command) == 2
        message = capsys.readouterr().err
        assert message.startswith("fedraa: run: ")
        assert all(name in message for name in (*FOREIGN, "--trust"))
    assert main(["replay", str(foreign)]) == 0
    assert main(["status", str(foreign)]) == 0
    assert main(["report", str(foreign), "--out", page, "--theme", "light"]) == 0
    with refuses("run", *FOREIGN, got=foreign):
        fl.resume(foreign, updates=6)
    assert not mark.exists()
    assert (foreign / "config.json").read_bytes() == before


def test_resume_with_trust_continues_the_run(foreign: Path, mark: Path) -> None:
    assert main(["resume", str(foreign), "--updates", "6", "--trust", "--quiet"]) == 0
    assert mark.exists()
    assert fl.History(foreign).summary["steps"] == 6
    assert fl.resume(foreign, updates=7, trust=True).summary["steps"] == 7


def test_resume_trusts_components_that_the_caller_passes_again(foreign: Path) -> None:
    history = fl.resume(foreign, updates=6, scheduler=FOREIGN[0], model=FOREIGN[1])
    assert history.summary["steps"] == 6
    with refuses("run", "module_of_mine:net", got=foreign):
        fl.resume(foreign, updates=7, scheduler=FOREIGN[0])


class Interrupt(fl.Callback):
    def on_commit(self, event: Any) -> None:
        raise KeyboardInterrupt


def test_resume_command_after_an_interruption_contains_trust(mark: Path, tmp_path: Path) -> None:
    out = tmp_path / "my run"
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.run(fl.Experiment(**SMALL, out=out, scheduler=FOREIGN[0]), callbacks=[Interrupt()])
    (note,) = stopped.value.__notes__
    command = note.partition(": fedraa ")[2]
    assert shlex.split(command) == ["resume", str(out), "--trust"]
    assert main([*shlex.split(command), "--quiet"]) == 0


def test_resume_call_after_an_interruption_lists_the_objects(tmp_path: Path) -> None:
    class Second(fl.Scheduler):
        def choose(self, view: Any, rng: Any) -> int:
            return max(view.feasible)

    out = tmp_path / "run"
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    given: dict[str, Any] = {"model": model, "scheduler": Second()}
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.run(**SMALL, **given, out=out, callbacks=[Interrupt()])
    call = f"fedraa.resume({str(out)!r}, model=..., scheduler=...)"
    (note,) = stopped.value.__notes__
    assert note.endswith(f": {call}")
    assert fl.resume(out, **given).summary["steps"] == 4


def test_resume_call_contains_trust_if_a_module_has_a_part_that_is_not_passed(mark: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))}
    with pytest.raises(KeyboardInterrupt) as stopped:
        fl.run(**SMALL, **given, out=out, scheduler=FOREIGN[0], callbacks=[Interrupt()])
    (note,) = stopped.value.__notes__
    assert note.endswith(f": fedraa.resume({str(out)!r}, model=..., trust=True)")
    with refuses("run", "model=..., trust=True)"):
        fl.resume(out)
    with refuses("run", "model=...)"):
        fl.resume(out, scheduler=FOREIGN[0])
    assert fl.resume(out, **given, trust=True).summary["steps"] == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scheduler", "module_of_mine:First"),
        ("model", "module_of_mine:net"),
        # The text does not have the form of a path, but names a model.
        ("model", "module_of_mine:1"),
        ("dataset", "module_of_mine:data"),
        ("compute", "module_of_mine:fleet"),
        ("partition", "module_of_mine:Deal(share=0.5)"),
        ("metrics", ["module_of_mine:Top"]),
        ("gradient_transforms", ["module_of_mine:Term"]),
        ("async_rule", r"convex-mix(staleness='module_of_mine\x3afirst')"),
        ("method", {"kind": "Method", "update": {"kind": "module_of_mine:Rule"}}),
        # A foreign function in a module of fedraa.
        ("scheduler", "fedraa.cli.main:os.system"),
    ],
)
def test_foreign_path_in_any_field_requires_trust(field: str, value: Any, mark: Path, tmp_path: Path) -> None:
    history = fl.run(fl.Experiment(**SMALL, out=tmp_path / "run"))
    path = history.directory / "config.json"
    config = json.loads(path.read_text())
    config["experiment"][field] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"--trust"):
        fl.resume(history.directory, updates=6)
    assert not mark.exists()


def test_paths_in_finds_the_import_paths_of_a_configuration() -> None:
    assert paths_in({"kind": "mean", "inner": ["a:B(c='d.e:F')", 3, None]}) == ["a:B", "d.e:F"]
    assert paths_in(["gre-raa", "sample:10", "uniform:1:2", "lognormal:0.5"]) == []
    with importing_only(["json:loads"]):
        assert import_object("x", "json:loads") is json.loads
        with refuses("x", "--trust", got="json:dumps"):
            import_object("x", "json:dumps")
